"""One request to one provider or server through litellm, with what came back read and named."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

from . import background
from .calls import Request, asked, model_label, text_digest
from .errors import InputError, SetupError
from .failures import Failure, classify
from .replytext import is_blank, split_reasoning, text_of

# litellm's own settings that would undo what the client promises: one retry layer, one store, one reply per call.
_REFUSED = frozenset(
    "messages model stream num_retries max_retries fallbacks cache caching drop_params mock_response".split()
)
_import_lock = threading.Lock()


@dataclass(frozen=True)
class Reply:
    """What a model said; `reason` is None for a usable answer, else refused, filtered or empty (`detail` says more)."""

    text: str | None
    reasoning: str | None = None
    finish_reason: str | None = None
    served_model: str | None = None
    provider: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    cost_usd: float | None = None
    reason: str | None = None
    detail: str | None = None


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
    # litellm and pydantic remark on litellm's own types, partly at its import and partly at its first call.
    for about in ("Pydantic serializer warnings", r"Items? .* qualifier", ".*protected namespace"):
        warnings.filterwarnings("ignore", message=about, category=UserWarning)
    with _import_lock:
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
    base = request.options.get("api_base") or request.options.get("base_url") or ""
    if base and not _is_address(base):
        raise InputError(f"The address of {label!r} must be like 'http://HOST:PORT/v1', got api_base {base!r:.100}.")
    try:
        route = litellm.get_llm_provider(request.model, api_base=base or None)[1]
    except Exception:
        route = None
    if route is None:
        raise InputError(
            "model must be a litellm id such as 'openai/gpt-4o' or 'hosted_vllm/NAME', or 'local/smollm2'; "
            f"the provider of {label!r} is not known."
        )
    if route == "hosted_vllm":
        base = base or os.environ.get("HOSTED_VLLM_API_BASE", "")
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
    host = urlsplit(base).hostname or ""
    at_home = host in ("localhost", "::1") or host.startswith("127.")
    return Target(request.model, label, route, {}, leaves_machine=not at_home)


def _is_address(base: object) -> bool:
    try:
        parts = urlsplit(base)
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except (ValueError, AttributeError, TypeError):
        return False


def sent_parameters(request: Request) -> dict:
    """Parameters and options as they are sent, without address, credentials and what ``drop`` names.

    Raises
    ------
    InputError
        For an option that belongs to the client, one given twice, or ``n`` other than 1.
    """
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
    return {name: value for name, value in sent.items() if name not in drop}


def takes_schema(request: Request, target: Target) -> bool:
    """Whether the model takes a JSON schema, by litellm's own list; servers of llama.cpp and vLLM do."""
    if target.route in ("local", "hosted_vllm"):
        return True
    try:
        return bool(load_litellm().supports_response_schema(model=request.model))
    except Exception:
        return False


async def complete(request: Request, target: Target, sent: dict, timeout_s: float) -> Reply | Failure:
    """Make one chat completion; every error comes back as a `Failure`, nothing is raised but cancellation."""
    litellm = load_litellm()
    timeout_s = request.options.get("timeout") or timeout_s
    try:
        async with asyncio.timeout(timeout_s + 5):  # litellm's own limit comes first, where a provider keeps it
            response = await litellm.acompletion(
                model=target.model, messages=[dict(message) for message in request.messages],
                timeout=timeout_s, num_retries=0, max_retries=0, **_unkeyed(request), **_whole(request, sent),
                **target.address,
            )  # fmt: skip
        return read_response(response, target)
    except Exception as error:
        return classify(error, timeout_s, sent)


async def embed(
    request: Request, texts: list[str], target: Target, sent: dict, timeout_s: float
) -> list[Reply] | Failure:
    """Embed several texts in one request: one `Reply` per text, whose text is the vector as JSON with 6 decimals."""
    litellm = load_litellm()
    try:
        async with asyncio.timeout(timeout_s + 5):
            response = await litellm.aembedding(
                model=target.model, input=texts, timeout=timeout_s, num_retries=0, max_retries=0,
                **_unkeyed(request), **_whole(request, sent), **target.address,
            )  # fmt: skip
        data = sorted(response.data, key=lambda item: item["index"])
        vectors = ["[" + ",".join(f"{x:.6f}" for x in item["embedding"]) + "]" for item in data]
    except Exception as error:
        return classify(error, timeout_s, sent)
    if len(vectors) != len(texts):
        return Failure("error", f"The provider returned {len(vectors)} embeddings for {len(texts)} texts.")
    usage, cost = getattr(response, "usage", None), getattr(response, "_hidden_params", {}).get("response_cost")
    total, count = getattr(usage, "prompt_tokens", None), len(texts)
    # Each text's share of the joint request; tokens are whole, so the first takes the rest and the sum is right.
    shares = [None] * count if total is None else [total // count + total % count, *[total // count] * (count - 1)]
    return [
        Reply(
            vector, None, "stop", getattr(response, "model", None), target.route, share, None if share is None else 0,
            cost_usd=None if cost is None else cost / len(texts),
        )
        for vector, share in zip(vectors, shares, strict=True)
    ]  # fmt: skip


def _unkeyed(request: Request) -> dict:
    """Options that are sent but are no part of the key: address, credentials, headers."""
    return {
        name: value
        for name, value in request.options.items()
        if value is not None and name not in ("timeout", "n", "drop") and name not in asked({name: value})
    }


def _whole(request: Request, sent: Mapping) -> dict:
    """`sent` with what its record leaves out inside values: a key in ``extra_body``, a schema's property ``tags``."""
    given = {**request.params, **request.options}
    return {name: _given(given.get(name, value)) for name, value in sent.items()}


def _given(value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    return {name: _given(item) for name, item in value.items() if item is not None}


def read_response(response, target: Target) -> Reply:
    """What a chat completion holds, with thinking apart from the visible answer."""
    choice = (getattr(response, "choices", None) or [None])[0]
    message, finish = getattr(choice, "message", None), getattr(choice, "finish_reason", None)
    hidden = getattr(response, "_hidden_params", None) or {}
    usage = getattr(response, "usage", None)
    extra = getattr(message, "provider_specific_fields", None) or {}
    text, thought = visible(getattr(message, "content", None))
    thought = getattr(message, "reasoning_content", None) or getattr(message, "reasoning", None) or thought
    refusal = getattr(message, "refusal", None) or extra.get("refusal")
    cost = getattr(usage, "cost", None)
    cost = cost if isinstance(cost, int | float) else hidden.get("response_cost")
    reason, detail = None, None
    if refusal or finish == "refusal":
        reason, detail = "refused", f"The model refused: {refusal or text or 'no words given'}"
    elif finish == "content_filter":
        reason, detail = "filtered", "The provider's content filter stopped the answer."
    elif is_blank(text):
        only = ", only reasoning" if thought else ""
        reason, detail = "empty", f"The reply has no visible text (finish_reason {finish!r}{only})."
    return Reply(
        text, thought, finish,
        hidden.get("provider_response_model") or getattr(response, "model", None),
        getattr(response, "provider", None) or target.route,
        getattr(usage, "prompt_tokens", None), getattr(usage, "completion_tokens", None),
        getattr(getattr(usage, "prompt_tokens_details", None), "cached_tokens", None),
        getattr(getattr(usage, "completion_tokens_details", None), "reasoning_tokens", None),
        0.0 if target.route == "local" else cost, reason, detail,
    )  # fmt: skip


def visible(content: object) -> tuple[str | None, str | None]:
    """Visible text and thinking of a reply's content."""
    text, thought = text_of(content)
    if text is None:
        return None, thought
    text, more = split_reasoning(text) if "<" in text or "◁" in text else (text, None)
    return text, thought or more


def clock() -> float:
    """A clock for latencies, in seconds."""
    return time.perf_counter()
