"""One request to one provider or server through litellm, with what came back read and named."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain

from . import background
from .addresses import on_this_machine, server_address, shown
from .calls import Request, asked, model_label, text_digest
from .errors import IMPORTING, InputError, SetupError
from .failures import LONGEST, Failure, classify, status_of
from .prices import cache_minimum, estimate_tokens, price
from .replytext import is_blank, text_of
from .responses import Reply, add_paid, count, dollars, from_json, read_replies, share
from .responses import visible as visible  # functions read their replies by the same rule

# litellm's own settings that would undo what the client promises: one retry layer, one store, one reply per call.
_REFUSED = frozenset(
    "messages model stream num_retries max_retries fallbacks cache caching drop_params mock_response".split()
)
_SHARE_SYSTEM = frozenset({"judge", "classifier", "proposer"})
_NO_PRICE = {"input_cost_per_token": 1e-12, "output_cost_per_token": 1e-12}  # keeps litellm from looking; never used
# Sampling parameters whose silent loss would change the experiment, in the spellings that providers have for them.
_SPELT = {"temperature": {"temperature"}, "top_p": {"top_p", "topP", "p"}, "seed": {"seed", "random_seed"}}


@dataclass(frozen=True)
class Target:
    """Where a model's calls go: its litellm id, address, and how many run side by side (None: no limit of its own)."""

    model: str
    label: str
    route: str
    address: Mapping
    slots: int | None = None
    leaves_machine: bool = True


@lru_cache(maxsize=1)
def load_litellm():
    """Import litellm quietly, with its local price map and without retries, cache, telemetry or dropped parameters."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    os.environ.setdefault("LITELLM_TELEMETRY", "False")
    with IMPORTING:
        # litellm and pydantic remark on litellm's own types, partly at its import and partly at its first call.
        for about in ("Pydantic serializer warnings", r"Items? .* qualifier", ".*protected namespace"):
            warnings.filterwarnings("ignore", message=about, category=UserWarning)
        try:
            import litellm
        except ImportError as error:
            raise SetupError(f"litellm cannot be imported ({error}); reinstall structmem.") from None
    litellm.telemetry = False
    litellm.suppress_debug_info = True
    litellm.drop_params = False
    litellm.num_retries = 0
    litellm.cache = None
    for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy", "httpx", "openai"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # their messages can hold keys and whole prompts
    # litellm adds its own exit handler at the first attribute it has to look for; ours must come later to run first.
    getattr(litellm, "structmem", None)
    background.before_exit(_close_litellm)
    return litellm


async def _close_litellm() -> None:
    import litellm
    from litellm.litellm_core_utils.logging_worker import GLOBAL_LOGGING_WORKER

    await GLOBAL_LOGGING_WORKER.stop(discard_pending=True, timeout=2)
    await litellm.close_litellm_async_clients()


def lane(request: Request) -> int | None:
    """Which server of a local model a request goes to: equal prompts go to the same one, which then holds them."""
    if callable(request.model) or not request.model.startswith("local/"):
        return None
    from . import local

    return int(text_digest("".join(str(message.get("content")) for message in request.messages)), 16) % local.LANES


async def find_target(request: Request) -> Target:
    """Start a local server if needed, or check that a hosted model can be called; nothing is paid here.

    Raises
    ------
    SetupError
        If a key or an address is missing, or a local server does not start.
    InputError
        If the provider of a model id is not known.
    """
    label = model_label(request.model)
    if request.model.startswith("local/"):
        from . import local

        endpoint, _ = await asyncio.gather(
            asyncio.to_thread(local.endpoint, request.model, lane(request)), asyncio.to_thread(load_litellm)
        )
        address = {"api_base": endpoint.api_base, "api_key": "local-server"}
        return Target(f"hosted_vllm/{endpoint.model}", label, "local", address, endpoint.slots, leaves_machine=False)
    litellm = await asyncio.to_thread(load_litellm)
    given = request.options.get("api_base") or request.options.get("base_url")
    if given:
        server_address(label, "", given)  # refused before litellm sees it
    try:
        route = litellm.get_llm_provider(request.model, api_base=given or None)[1]
    except Exception:
        route = None
    if route is None:
        raise InputError(
            "model must be a litellm id such as 'openai/gpt-4o' or 'hosted_vllm/NAME', or 'local/smollm2'; "
            f"the provider of {label!r} is not known."
        )
    base = server_address(label, route, given)
    if route == "hosted_vllm" and not base:
        raise SetupError(
            f"{label!r} is served by your own server, whose address is missing: "
            "model_options={'api_base': 'http://HOST:PORT/v1'} or the variable HOSTED_VLLM_API_BASE."
        )
    if not request.options.get("api_key"):
        missing = litellm.validate_environment(request.model).get("missing_keys") or []
        # Only plain API keys: cloud credentials may also come from a profile or the machine itself.
        if missing and all(name.endswith("_API_KEY") for name in missing):
            raise SetupError(
                f"{label!r} needs a key: set the environment variable {' and '.join(missing)}. No call was made."
            )
    return Target(
        request.model,
        label,
        route,
        {"api_base": base} if base else {},
        leaves_machine=not (base and on_this_machine(base)),
    )


def sent_parameters(request: Request) -> dict:
    """Parameters and options as they are sent, without address, credentials and what ``drop`` names.

    Raises
    ------
    InputError
        For an option that belongs to the client, one given twice, ``n`` other than 1, or a message of blanks.
    """
    for place, message in enumerate(request.messages, 1):
        if any(map(is_blank, _texts([message]))):
            raise InputError(
                f"Message {place} of the {request.role} request holds a text of blanks and zero-width characters only, "
                "which providers refuse; nothing was sent."
            )
    options = {name: value for name, value in request.options.items() if value is not None}
    params = {name: value for name, value in request.params.items() if value is not None}
    if wrong := sorted(_REFUSED & {*options, *params}):
        raise InputError(f"Option {wrong[0]!r} belongs to the client and cannot be set per model; remove it.")
    if {options.get("n", 1), params.get("n", 1)} != {1}:
        raise InputError("Option 'n' must be 1: each generation is a call of its own; ask for generations instead.")
    if twice := sorted(set(options) & set(params)):
        raise InputError(f"{twice[0]!r} is given both as a parameter and in the model's options; give it once.")
    drop = options.pop("drop", ())
    if not isinstance(drop, str | list | tuple | set):
        raise InputError(f"Option 'drop' takes names of parameters that shall not be sent, got {drop!r}.")
    drop = {drop} if isinstance(drop, str) else set(drop)
    timeout = options.get("timeout", 1)
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
        raise InputError(f"Option 'timeout' must be a number of seconds above 0, got {timeout!r}.")
    sent = asked(params | options)
    if isinstance(request.model, str) and request.model.startswith("local/"):
        sent.setdefault("temperature", 1.0)  # the server's own default is another one
    elif _keeps_system(request):
        sent.setdefault("cache_control_injection_points", [{"location": "message", "role": "system"}])
    return {name: value for name, value in sent.items() if name not in drop}


def _keeps_system(request: Request) -> bool:
    """Whether to ask the provider to keep the system message, which all calls of a judge or sorter share."""
    first = request.messages[0]
    if request.role not in _SHARE_SYSTEM or first.get("role") != "system" or not isinstance(first["content"], str):
        return False
    minimum = cache_minimum(request.model) if isinstance(request.model, str) else None
    return minimum is not None and estimate_tokens([first["content"]]) >= minimum


def takes_n(request: Request, target: Target) -> bool:
    """Whether one request may ask this model for several choices, by litellm's own list.

    Models started here answer one after the other anyway. The option ``n`` set to 1 forbids it.
    """
    if target.route == "local" or callable(request.model) or request.options.get("n") == 1:
        return False
    try:
        return "n" in (load_litellm().get_supported_openai_params(request.model, target.route) or ())
    except Exception:
        return False


def takes_schema(request: Request, target: Target) -> bool:
    """Whether the model takes a JSON schema, by litellm's own list; servers of llama.cpp and vLLM do."""
    if target.route in ("local", "hosted_vllm"):
        return True
    try:
        return bool(load_litellm().supports_response_schema(model=request.model))
    except Exception:
        return False


async def complete(
    request: Request, target: Target, sent: dict, timeout_s: float, n: int = 1
) -> Reply | list[Reply] | Failure:
    """Make one chat completion; every error comes back as a `Failure`, nothing is raised but cancellation.

    Parameters
    ----------
    sent : dict
        Of `sent_parameters`. What litellm leaves out against our wish is taken out of it, so that it stays true.
    n : int
        With more than 1, that many choices are asked for, and the replies come as a list: one for each choice that
        came back, maybe fewer.
    """
    return (await exchange(request, target, sent, timeout_s, n))[0]


async def exchange(request: Request, target: Target, sent: dict, timeout_s: float, n: int = 1) -> tuple:
    """`complete`, and the URL that was used (without what may be secret in it; None if nothing was sent)."""
    litellm, wire = load_litellm(), _Wire()
    timeout_s = request.options.get("timeout") or timeout_s
    # litellm's own price is looked for at length, and not found, for servers of one's own: a third of a call's work.
    unpriced = target.route in ("hosted_vllm", "local") and target.model not in litellm.model_cost
    extra = dict(_NO_PRICE) if unpriced else {}
    if n > 1:
        extra["n"] = n
    texts = _texts(request.messages)
    try:
        async with asyncio.timeout(timeout_s + 5):  # litellm's own limit comes first, where a provider keeps it
            response = await litellm.acompletion(
                model=target.model, messages=[dict(message) for message in request.messages],
                timeout=timeout_s, num_retries=0, max_retries=0, logger_fn=wire, **_unkeyed(request, target),
                **_whole(request, sent), **target.address, **extra,
            )  # fmt: skip
    except Exception as error:
        # litellm fails on some replies that came back whole, such as a content of blocks: they are paid for, and read.
        response = from_json(wire.reply)
        if response is None:
            return _failed(error, timeout_s, sent, wire), wire.url
    for name in wire.left_out(sent):
        sent.pop(name, None)
    try:
        replies = read_replies(
            response, target.route, texts=texts, cost=None if unpriced else _cost(response, request),
            adds_cached=target.leaves_machine and target.route != "hosted_vllm", most=n,
        )  # fmt: skip
    except Exception as error:
        return classify(error, timeout_s, sent), wire.url
    if target.route == "local":
        replies = [replace(reply, cost_usd=0.0) for reply in replies]
    if replies[0].reason == "error":
        paid = add_paid(replies[0], replies[1:])
        counted = paid.input_tokens is not None or paid.cost_usd is not None
        return Failure("error", paid.detail, retry=True, paid=paid if counted else None), wire.url
    return replies if n > 1 else replies[0], wire.url


def _failed(error: Exception, timeout_s: float, sent: Mapping, wire: _Wire) -> Failure:
    failure = classify(error, timeout_s, sent, wire.url)
    if wire.reply is None or failure.reason != "error" or 400 <= (status_of(error) or 0) < 500:
        return failure
    # Mostly a proxy's page, or a body cut on its way. Whole, since a key in it is known only as long as it is whole.
    said = " ".join(wire.reply[:LONGEST].split())
    return replace(failure, detail=f"No answer came back from {wire.url}. {failure.detail} Body: {said}", retry=True)


class _Wire:
    """What litellm tells of the request it makes: it is called before and after, with all that it knows of it."""

    def __init__(self):
        self.url, self.body, self.reply = None, None, None

    def __call__(self, told: Mapping) -> None:
        more = told.get("additional_args") or {}
        if told.get("log_event_type") == "pre_api_call":
            url, self.body = more.get("api_base"), more.get("complete_input_dict")
            base = (told.get("litellm_params") or {}).get("api_base")
            # The OpenAI library is given the address only, and adds the path itself.
            url = url if isinstance(url, str) else f"{str(base).rstrip('/')}/chat/completions" if base else None
            self.url = url and shown(url)
        elif isinstance(told.get("original_response"), str):
            self.reply = told["original_response"]

    def left_out(self, sent: Mapping) -> list[str]:
        """Sampling parameters that were to be sent and are not in the body at any depth."""
        if not isinstance(self.body, Mapping) or not self.body:
            return []
        names = _names(self.body)
        return [name for name in sent if name in _SPELT and not _SPELT[name] & names]


def _names(value: object, depth: int = 3) -> set[str]:
    if not isinstance(value, Mapping):
        return set()
    inner = (_names(item, depth - 1) for item in value.values()) if depth else ()
    return {str(name) for name in value}.union(*inner)


def _texts(messages: Iterable[Mapping]) -> list[str]:
    """Every text in the messages, those of content blocks one by one."""
    found = []
    for message in messages:
        content = message.get("content")
        blocks = content if isinstance(content, list | tuple) else [content]
        found += [text for block in blocks if isinstance(text := text_of(block)[0], str)]
    return found


def _cost(response: object, request: Request) -> float | None:
    """Dollars by litellm's reckoning; its 0 for a model whose price nobody knows is no price."""
    cost = dollars((getattr(response, "_hidden_params", None) or {}).get("response_cost"))
    known = price(request.model) if not cost else None
    return cost or (0.0 if known is not None and not known.input and not known.output else None)


async def embed(
    request: Request, texts: list[str], target: Target, sent: dict, timeout_s: float
) -> list[Reply] | Failure:
    """Embed several texts in one request: one `Reply` per text, whose text is the vector as JSON with 6 decimals."""
    litellm = load_litellm()
    try:
        async with asyncio.timeout(timeout_s + 5):
            response = await litellm.aembedding(
                model=target.model, input=texts, timeout=timeout_s, num_retries=0, max_retries=0,
                **_unkeyed(request, target), **_whole(request, sent), **target.address,
            )  # fmt: skip
        data = sorted(response.data, key=lambda item: item["index"])
        rows = [item["embedding"] for item in data]
        vectors = ["[" + ",".join(f"{x:.6f}" for x in row) + "]" for row in rows]
    except Exception as error:
        return classify(error, timeout_s, sent)
    if len(vectors) != len(texts):
        return Failure("error", f"The provider returned {len(vectors)} embeddings for {len(texts)} texts.")
    if len(sizes := {len(row) for row in rows}) > 1 or sizes == {0} or not all(map(math.isfinite, chain(*rows))):
        return Failure("error", f"The provider returned embeddings of {sorted(sizes)} numbers, or some not finite.")
    total = count(getattr(getattr(response, "usage", None), "prompt_tokens", None)) or None
    served = getattr(response, "model", None)
    replies = [Reply(vector, None, "stop", served, target.route) for vector in vectors]
    counts = {
        "input_tokens": total,
        "output_tokens": None if total is None else 0,
        "cost_usd": _cost(response, request),
    }
    return share(replies, counts)


def _unkeyed(request: Request, target: Target) -> dict:
    """Options that are sent but are no part of the key: credentials, headers, and an address the target has not."""
    ours = {"timeout", "n", "drop", *(("api_base", "base_url") if "api_base" in target.address else ())}
    return {
        name: value
        for name, value in request.options.items()
        if value is not None and name not in ours and name not in asked({name: value})
    }


def _whole(request: Request, sent: Mapping) -> dict:
    """`sent` with what its record leaves out inside values: a key in ``extra_body``, a schema's property ``tags``."""
    given = {**request.params, **request.options}
    return {name: _given(given.get(name, value)) for name, value in sent.items()}


def _given(value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    return {name: _given(item) for name, item in value.items() if item is not None}


def clock() -> float:
    """A clock for latencies, in seconds."""
    return time.perf_counter()
