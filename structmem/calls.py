"""A model call: the request as asked, its key in the store, and what came back."""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import PurePath

from .errors import InputError, SetupError, choice

KEY_VERSION = "k1"
ROLES = ("answer", "judge", "classifier", "proposer", "structurer", "embedding")
SORTING = ("classifier", "proposer", "structurer")  # roles that make partitions
STATUSES = ("ok", "rejected", "no_response")

# Where a call goes, who pays and how long to wait: no part of what is asked, so no part of the key and never stored.
UNKEYED = frozenset(
    "api_base base_url api_version api_key timeout request_timeout stream_timeout headers extra_headers "
    "default_headers organization port n custom_llm_provider client vertex_project vertex_location vertex_credentials "
    "aws_region_name aws_profile_name azure_ad_token tenant_id client_id memories tags".split()
)
_CREDENTIAL = re.compile(r"(?:^|_)(?:key|token|secret|password|credentials?|authorization)$", re.IGNORECASE)


@dataclass(frozen=True)
class Request:
    """One call as asked.

    Parameters
    ----------
    model : str or callable
        A litellm model id, ``local/…``, or a Python function ``fn(messages)`` or ``fn(messages, request)``.
    messages : sequence of dict
        Chat messages with ``role`` and ``content``; no content is blank.
    role : str
        What the call is for, one of `ROLES`.
    params : dict
        Sampling parameters as asked (``temperature``, ``max_tokens``, …); None means not asked for.
    options : dict
        Provider options, passed on as they are; addresses, credentials and timeouts are no part of the key.
        ``drop`` is ours: names of parameters that shall not be sent.
    generation, replicate, attempt : int
        Which repetition this is, from 0.
    memories : tuple of str
        Memory texts this call was built from; the store keeps salted hashes of them.
    tags : dict
        Names for error messages and for callables (``entry_id``, ``structure``); neither keyed nor stored.
    """

    model: str | Callable
    messages: tuple[dict, ...]
    role: str
    params: dict = field(default_factory=dict)
    options: dict = field(default_factory=dict)
    generation: int = 0
    replicate: int = 0
    attempt: int = 0
    memories: tuple[str, ...] = ()
    tags: dict = field(default_factory=dict)

    def __post_init__(self):
        if self.role not in ROLES:
            raise choice("role", self.role, ROLES)
        for name in ("params", "options", "tags"):
            if not isinstance(getattr(self, name), Mapping):
                raise InputError(f"{name} of a request must be a dict, got {type(getattr(self, name)).__name__}.")
        if not isinstance(self.messages, Sequence) or isinstance(self.messages, str):
            raise InputError(f"messages must be a list of dicts, got {type(self.messages).__name__}.")
        object.__setattr__(self, "messages", tuple(self.messages))
        object.__setattr__(self, "memories", tuple(self.memories))
        if not self.messages:
            raise InputError("A request needs at least one message, got none.")
        for place, message in enumerate(self.messages, 1):
            content = message.get("content") if isinstance(message, Mapping) else None
            if not content or (isinstance(content, str) and content.isspace()):
                raise InputError(
                    f"Message {place} of the {self.role} request is blank; expected a role and a text "
                    "(several providers refuse blank messages)."
                )
        for name in ("generation", "replicate", "attempt"):
            value = getattr(self, name)
            if type(value) is not int or value < 0:
                raise InputError(f"{name} must be a whole number from 0, got {value!r}.")


@dataclass(frozen=True)
class Call:
    """What came back for one request.

    ``status`` is ``ok``, ``rejected`` (the reply could not be used; `status_reason` is the reader's code) or
    ``no_response`` (`status_reason`: refused, filtered, empty, timeout, error, too_long; `error` has the details).
    ``text`` is the visible answer, ``reasoning`` the model's thinking. Counts are tokens, ``cost_usd`` is US dollars,
    ``latency_s`` seconds; None means unknown. ``model`` is the id as asked, ``served_model`` what the provider says.
    ``params_sent`` are parameters and options as sent, without address and credentials; ``requests`` is how many
    requests this call took, retries included (None: not known; 0: it came with another generation's). ``plan_hash`` is
    the analysis plan that was in force when the call was made, for the calls of a run.
    """

    key: str
    status: str
    status_reason: str | None = None
    text: str | None = None
    reasoning: str | None = None
    finish_reason: str | None = None
    truncated: bool = False
    model: str = ""
    served_model: str | None = None
    provider: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    cost_usd: float | None = None
    latency_s: float | None = None
    called_at: str = ""
    params_sent: dict = field(default_factory=dict)
    requests: int | None = None
    error: str | None = None
    role: str = "answer"
    generation: int = 0
    replicate: int = 0
    attempt: int = 0
    plan_hash: str | None = None
    from_store: bool = False


def request_key(request: Request) -> str:
    """The key of a request in the store: 64 hex digits over everything that was asked.

    The key is sha256 over the format version and digests of the parts: model identity, each message text, parameters,
    options, role, generation, replicate, attempt. The format is final: stored and recorded calls hang on it.

    Raises
    ------
    InputError
        If a part has no exact JSON form, or a callable model has no lasting name.
    """
    found = request.__dict__.get("_key")  # a request does not change, and is asked for its key several times
    if found is None:
        # As _dump of the list of parts would write it, at a third of the time: keys are most of what a rerun does.
        messages = ",".join(_message_part(message) for message in request.messages)
        found = hashlib.sha256(
            f"{KEY_VERSION}\n[{_text(model_identity(request.model))},[{messages}],"
            f'"{_values_digest(request.params)}","{_values_digest(request.options)}","{request.role}",'
            f"{request.generation},{request.replicate},{request.attempt}]".encode()
        ).hexdigest()
        object.__setattr__(request, "_key", found)
    return found


def asked(values: Mapping) -> dict:
    """`values` without what is None, an address, a credential or a timeout; credentials are left out at every depth."""
    return {name: _shown(value) for name, value in values.items() if value is not None and not _is_unkeyed(name)}


def _shown(value: object) -> object:
    """A nested value without credentials; only texts are any, since a property of a schema may be called ``key``."""
    if isinstance(value, list | tuple):
        return [_shown(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    return {
        name: _shown(item)
        for name, item in value.items()
        if not (isinstance(item, str) and _CREDENTIAL.search(str(name)))
    }


@lru_cache(maxsize=4096)
def _is_unkeyed(name: str) -> bool:
    return name in UNKEYED or bool(_CREDENTIAL.search(str(name)))


def canonical(value: object) -> str:
    """Canonical JSON: sorted names, whole floats as integers, texts exactly as they are.

    Raises
    ------
    InputError
        For NaN, infinities, names that are not texts, and values that JSON does not have.
    """
    return _dump(_plain(value))


def model_label(model: str | Callable) -> str:
    """The name of a model for tables and messages; a local file without its folder, which differs between machines."""
    if callable(model):
        return _callable_name(model)
    return f"local/{PurePath(model).name}" if model.startswith("local/") else model


def model_identity(model: str | Callable) -> str:
    """What makes two models the same in the key: no route prefix, a local model's file digest, a callable's name."""
    if callable(model):
        return f"callable:{_callable_name(model)}"
    if not isinstance(model, str) or not model.strip():
        raise InputError(f"model must be a litellm model id, 'local/…' or a function, got {model!r}.")
    if model.startswith("local/"):
        return f"sha256:{_local_sha256(model)}"
    return model.split("/", 1)[-1]


@lru_cache(maxsize=64)
def _local_sha256(model: str) -> str:
    from . import local

    try:
        return local.model_sha256(model)
    except SetupError:
        if model == local.SMOLLM2:  # replaying its recorded calls needs no model file
            return local.SMOLLM2_SHA256
        raise


@lru_cache(maxsize=256)
def _callable_name(model: Callable) -> str:
    name = getattr(model, "model_id", None)
    if name is not None:
        if not isinstance(name, str) or not name.strip():
            raise InputError(f"model_id of a callable model must be a text, got {name!r}.")
        return name
    title = getattr(model, "__qualname__", None)
    if not inspect.isroutine(model) or title is None or "<" in title or "." in title:
        raise InputError(
            f"The callable model {title or type(model).__name__!r} has no lasting name, so its calls could "
            "not be found again; give it one: fn.model_id = 'my-model-1' (a new one whenever its answers change)."
        )
    try:
        # A function edited in a notebook keeps its name; its source keeps it from being answered by its predecessor.
        source = inspect.getsource(model)
    except (OSError, TypeError):
        raise InputError(f"The source of the callable model {title!r} cannot be read; set {title}.model_id.") from None
    return f"{title}@{text_digest(source)[:16]}"


_values_digests: dict[str, str] = {}


def _values_digest(values: Mapping) -> str:
    # A grid has few settings and many calls; repr is quick, and tells 1 from True, as a tuple of values would not.
    shown = repr(values)
    if shown not in _values_digests:
        if len(_values_digests) > 1000:
            _values_digests.clear()
        _values_digests[shown] = text_digest(canonical(asked(values)))
    return _values_digests[shown]


def _message_part(message: Mapping) -> str:
    content, role = message["content"], message.get("role")
    digest = text_digest(content if isinstance(content, str) else canonical(content))
    more = "" if len(message) <= 2 else "," + _dump(canonical({k: message[k] for k in message.keys() - _TWO}))
    return f'[{_text(role) if isinstance(role, str) else _dump(role)},"{digest}"{more}]'


@lru_cache(maxsize=1024)
def text_digest(text: str) -> str:
    """sha256 of a text, in hex; long prompts that many calls share are digested once."""
    try:
        return hashlib.sha256(text.encode()).hexdigest()
    except UnicodeEncodeError as error:
        raise InputError(
            f"A request text holds half a surrogate pair at character {error.start}, which cannot be sent; repair it."
        ) from None


# Made once: json.dumps builds an encoder for every call that asks for a form of its own.
_dump = json.JSONEncoder(sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


_TWO = {"role", "content"}
_text = lru_cache(maxsize=512)(_dump)  # JSON of a short text


def _plain(value: object) -> object:
    if value is None or isinstance(value, (str, bool)):  # noqa: UP038 - half the time of str | bool
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InputError(f"A request cannot hold {value!r}; expected a finite number.")
        return int(value) if value == int(value) else float(value)
    if isinstance(value, Mapping):
        if wrong := [name for name in value if not isinstance(name, str)]:
            raise InputError(f"Names in parameters and options must be texts, got {wrong[0]!r}.")
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):  # a numpy scalar
        return _plain(value.item())
    raise InputError(f"A request cannot hold {value!r} ({type(value).__name__}); expected JSON values.")
