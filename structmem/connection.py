"""Checks that a model can be called: where the request goes, what comes back, and which settings are honoured."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from . import transport
from .background import run_sync
from .calls import Request, model_label
from .errors import InputError, StructmemError
from .failures import Failure
from .masking import Masker
from .responses import Reply

TIMEOUT_S = 60
TOKENS = 512  # a model that thinks needs room before it says anything
MOST_REQUESTS = 3
LONGEST = 800  # characters of an answer or a problem that are shown; cut once keys are hidden

# The schema asks for names that the words do not mention: a reply that has them shows that the schema was used.
_SCHEMA = {
    "type": "json_schema",
    "json_schema": {
        "name": "greeting",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {"greeting": {"type": "string"}, "language": {"type": "string"}},
            "required": ["greeting", "language"],
            "additionalProperties": False,
        },
    },
}
_WORDS = "Answer in JSON: say hello to the world."


@dataclass(frozen=True)
class Connection:
    """What one to three small requests to a model showed.

    ``ok``: a usable answer came back. ``url`` is where the request went, without secrets (None: nothing was sent).
    ``usage``, ``n``, ``schema`` and ``temperature`` say whether the server counted tokens, gave two choices where two
    were asked for, kept to the JSON schema, and accepted temperature 0; None: not tried, or it cannot be told.
    ``requests`` were made. ``said`` is the beginning of the answer, ``problem`` what went wrong.
    """

    model: str
    ok: bool
    url: str | None = None
    served_model: str | None = None
    finish_reason: str | None = None
    usage: bool | None = None
    n: bool | None = None
    schema: bool | None = None
    temperature: bool | None = None
    requests: int = 0
    said: str | None = None
    problem: str | None = None

    def lines(self) -> list[str]:
        """The findings, one a line, for a terminal."""
        words = {True: "yes", False: "no", None: "not known"}
        rows = [("model", self.model), ("URL", self.url or "nothing was sent"), ("requests", str(self.requests))]
        if self.ok:
            rows += [
                ("served model", self.served_model or "not said"),
                ("finish reason", self.finish_reason or "not said"),
                ("counts tokens", words[self.usage]),
                ("several choices", words[self.n]),
                ("JSON schema", words[self.schema]),
                ("temperature 0", words[self.temperature]),
                ("answer", repr(self.said)),
            ]
        if self.problem:
            rows.append(("note" if self.ok else "failed", self.problem))
        return [f"{name:<16}{value}" for name, value in rows]


def check_connection(model: str, options: Mapping | None = None) -> Connection:
    """Make one small request to a model (up to three if a setting is refused) and say what it showed.

    Nothing is stored. A cent is the most that it costs.

    Parameters
    ----------
    model : str
        A litellm model id, or ``local/…``.
    options : mapping, optional
        Provider options as elsewhere: ``api_base``, ``api_key``, ``timeout``, …

    Returns
    -------
    Connection
        Also when the model cannot be called: `problem` says why.

    Raises
    ------
    InputError
        If `model` is no model id or an option is of the wrong kind.
    """
    if not isinstance(model, str):
        raise InputError(f"model must be a litellm model id or 'local/…', got {model!r}.")
    options = dict(options or {})
    masker = Masker()
    masker.learn(options)
    found = run_sync(_check(model, options))
    hidden = {name: masker.mask(value) for name in ("url", "said", "problem") if (value := getattr(found, name))}
    return replace(found, **{name: text if name == "url" else text[:LONGEST] for name, text in hidden.items()})


async def _check(model: str, options: dict) -> Connection:
    found = Connection(model_label(model), False)
    settings = {"n": 2, "response_format": _SCHEMA, "temperature": 0, "max_tokens": TOKENS}
    refused: dict[str, str] = {}

    def asks() -> Request:
        params = {name: value for name, value in settings.items() if name != "n"}
        return Request(model, ({"role": "user", "content": _WORDS},), "answer", params, options)

    try:
        target = await transport.find_target(asks())
    except InputError:
        raise
    except StructmemError as error:
        return replace(found, problem=str(error))
    if not transport.takes_n(asks(), target):
        del settings["n"]
    if not transport.takes_schema(asks(), target):
        del settings["response_format"]
    while True:
        request = asks()
        sent = transport.sent_parameters(request)
        outcome, url = await transport.exchange(request, target, sent, TIMEOUT_S, settings.get("n", 1))
        found = replace(found, url=url or found.url, requests=found.requests + (url is not None))
        if not isinstance(outcome, Failure):
            return _findings(found, outcome, settings, sent, refused)
        names = _refused(outcome, settings)
        if outcome.setup or outcome.retry or outcome.reason != "error" or not names or len(refused) >= MOST_REQUESTS:
            return replace(found, problem=outcome.detail)
        for name in names:
            del settings[name]
        # Where nothing is named, all go at once, and nothing is known of any.
        refused[names[0] if len(names) == 1 else ""] = outcome.detail


def _refused(failure: Failure, settings: Mapping) -> list[str]:
    """The setting that a failure names, else all but the limit of tokens."""
    signs = {name: rf"\b{name}\b" for name in settings}
    signs |= {"n": r"""['"`]n['"`]|\bn ?(?:=|>|must|is|other)""", "response_format": r"response_format|json_?schema"}
    named = [name for name in settings if re.search(signs[name], failure.detail, re.IGNORECASE)]
    return named[:1] or [name for name in settings if name != "max_tokens"]


def _findings(
    found: Connection, outcome: Reply | list[Reply], settings: Mapping, sent: Mapping, refused: Mapping
) -> Connection:
    replies = outcome if isinstance(outcome, list) else [outcome]
    first = replies[0]

    def honoured(name: str, seen: bool) -> bool | None:
        return seen if name in settings else False if name in refused else None

    return replace(
        found,
        ok=first.reason is None,
        served_model=first.served_model,
        finish_reason=first.finish_reason,
        usage=first.input_tokens is not None and first.output_tokens is not None,
        n=honoured("n", len(replies) == settings.get("n")),
        schema=honoured("response_format", _keeps_schema(first.text)),
        temperature=honoured("temperature", "temperature" in sent),
        said=first.text,
        problem=first.detail or " ".join(refused.values()) or None,
    )


def _keeps_schema(text: str | None) -> bool:
    try:
        value = json.loads(text or "")
    except ValueError:
        return False
    return isinstance(value, dict) and set(value) == {"greeting", "language"}
