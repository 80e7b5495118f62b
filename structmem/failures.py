"""What a failed request means: whether it may be tried again, and in which words it is reported."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

LONGEST = 20_000  # characters of an error that are looked at; it is cut for good once keys are hidden


def _any(*patterns: str) -> re.Pattern:
    return re.compile("|".join(patterns), re.IGNORECASE)


# As said by litellm, OpenAI, vLLM, llama.cpp, Ollama, Anthropic, Bedrock, Gemini, Mistral, Groq, Together, Cohere, TGI.
_TOO_LONG = _any(
    r"context[ _-]?(?:length|window|size|limit)", r"maximum context", r"too large for model with",
    r"(?:prompt|input|request|messages?|conversation|text)\b.{0,40}\b(?:is|are|was) too (?:long|large)",
    r"(?:too many|(?:number|amount) of) (?:total |input |prompt )?tokens.{0,80}(?:exceed|limit|maximum)",
    r"too many (?:total |input |prompt )?tokens", r"input (?:is|length|token count).{0,60}(?:too long|exceed)",
    r"reduce (?:the|your) (?:length|prompt|input|message)", r"prompt tokens.{0,40}(?:exceed|limit)",
    r"exceeds? (?:the |this |our )?(?:model'?s? )?(?:available|maximum|limit|max)\b.{0,40}(?:context|tokens|length)",
    r"inputs?`? tokens.{0,40}must be <=", r"must have less than \d+ tokens", r"exceeded max(?:imum)? (?:input|context)",
    r"request (?:entity )?too large",
)  # fmt: skip
_NOT_TOO_LONG = _any(
    r"max_(?:completion_)?tokens\b.{0,60}(?:too large|at most|less than or equal|must be)", r"rate limit"
)
_FILTERED = _any(
    r"content[ _]?(?:filter|policy|management)", r"safety (?:system|filter)", r"responsible ai",
    r"blocked by .{0,30}safety", r"prohibited_content", r"flagged (?:as|for|by)", r"requires moderation",
    r"(?:input|prompt|messages?|content|request) (?:was|were|has been|is) flagged",
    r"moderation (?:policy|filter|system)",
)  # fmt: skip
_UNSUPPORTED = _any(
    r"unsupported[ _](?:value|param)", r"does(?: not|n't) support", r"(?:is|are) not supported",
    r"not supported (?:param|with)", r"unrecognized (?:request )?argument", r"only the default \(1\)",
    r"extra inputs are not permitted", r"unknown (?:name|parameter|field)", r"deprecated for this model",
)  # fmt: skip
_NO_MODEL = _any(r"(?:not a valid|no such|unknown|invalid) model", r"model\b.{0,80}(?:not found|does not exist)")
# Said of a missing key or library by litellm itself, with the status of a server's fault.
_NOT_SET_UP = _any(r"missing credentials", r"no module named", r"api_key client option must be set")
_NO_MONEY = _any(r"insufficient[ _](?:quota|credit|balance|funds)", r"exceeded your current quota")
_UNREACHABLE = _any(
    r"cannot connect", r"connection refused", r"connection error", r"connect call failed",
    r"name or service", r"getaddrinfo",
)  # fmt: skip
# A body with HTTP 200 may tell of an error by a code in words.
_CODES = {
    429: _any(r"rate.?limit", r"too.?many.?requests", r"throttl", r"resource.?exhausted"),
    529: _any(r"overload"),
    503: _any(r"unavailable"),
    500: _any(r"server.?error", r"internal.?error"),
}
# Someone's name and password in an address; a path cannot be meant, since it begins with a slash.
_LOGIN = re.compile(r"(?<=://)[^/\s?#]*@")
_OVERLOADED = _any(r"overload", r"capacity", r"\bbusy\b", r"too many", r"rate.?limit", r"slow.?down", r"throttl")
_WORDS_WAIT = re.compile(
    r"""(?ix) (?: try\ again\ in | retry\ (?:in|after) | retryDelay"?\s*:) \s*"?(?=\d)
    (?:(\d+)\s*h(?:ours?)?\s*)? (?:(\d+)\s*m(?:in(?:utes?)?)?(?!s)\s*)? (?:(\d+(?:\.\d+)?)\s*s(?:ec(?:onds?)?)?)?
    (?:(\d+(?:\.\d+)?)\s*ms)?"""
)


@dataclass(frozen=True)
class Failure:
    """No answer: `reason` is timeout, error, too_long or filtered.

    `retry`: the same request may work later, after `wait_s` seconds if the provider said so. `setup`: key, address or
    model name are wrong, so that every other call would fail too. `throttled`: the provider says that it is asked too
    much at once, so that fewer requests at a time would help. `paid`: a `Reply` without text that holds the counts and
    the cost of what came back in vain.
    """

    reason: str
    detail: str
    retry: bool = False
    wait_s: float | None = None
    setup: bool = False
    throttled: bool = False
    paid: object | None = None


def classify(error: BaseException, timeout_s: float, sent: Mapping | None = None, url: str | None = None) -> Failure:
    """Name an exception by status and words, not by class: litellm's classes differ between routes for one answer.

    Parameters
    ----------
    error : BaseException
    timeout_s : float
        Seconds that were allowed.
    sent : mapping, optional
        Parameters that were sent, to name the one that was not accepted.
    url : str, optional
        Where the request went, said where that may be what is wrong.
    """
    status, kind = status_of(error), type(error).__name__
    said = re.sub(r"\s+", " ", str(error).split("Traceback (most recent call last)")[0]).strip()[:LONGEST]
    said = _LOGIN.sub("", said)
    # litellm writes the names of its own classes before what was said, once for each layer.
    said = re.sub(r"^(?:(?:litellm\.)?\w+(?:Error|Exception)\s*(?:-|:)\s*)+", "", said) or said
    detail = f"{kind}{f' (HTTP {status})' if status else ''}: {said}"
    if isinstance(error, TimeoutError) or "Timeout" in kind or status == 408:
        return Failure("timeout", f"No answer within {timeout_s:g} s.", retry=True)
    # OpenAI says 429 of a request that is larger than the tokens of a whole minute: waiting would not help.
    too_large = status == 429 and re.search(r"request too large|tokens must be reduced", said, re.IGNORECASE)
    if kind == "ContextWindowExceededError" or too_large or (status in (400, 413, 422, 500) and _is_too_long(said)):
        return Failure("too_long", f"The prompt is longer than the model takes. {detail}")
    if kind == "ContentPolicyViolationError" or (status in (400, 403) and _FILTERED.search(said)):
        return Failure("filtered", detail)
    if kind == "UnsupportedParamsError" or (status in (400, 422) and _UNSUPPORTED.search(said)):
        return Failure("error", f"{_refused_parameter(said, sent or {})} {detail}")
    if "Invalid response object" in said:
        return Failure("error", f"The reply has a shape that cannot be read. {detail}")
    if status == 429:
        broke = bool(_NO_MONEY.search(said))
        return Failure("error", detail, retry=not broke, wait_s=retry_after(error), throttled=not broke)
    if _NOT_SET_UP.search(said) or status in (401, 402, 403, 404) or (status == 400 and _NO_MODEL.search(said)):
        where = f" The request went to {url}: is the address right?" if status == 404 and url else ""
        where += " Most end in /v1." if where and "/v1" not in url else ""
        return Failure("error", detail + where, setup=True)
    if status in (409, 425):  # two requests at odds, or one that came too early
        return Failure("error", detail, retry=True, wait_s=retry_after(error))
    if (status or 0) >= 500 or "Connection" in kind or isinstance(error, OSError):
        throttled = status in (503, 529) and bool(_OVERLOADED.search(f"{getattr(error, 'status_code', '')} {said}"))
        if unreachable := bool(_UNREACHABLE.search(said)):  # litellm calls it HTTP 500, but nobody has answered
            detail = f"Nothing answers at {url or 'the address'}: {re.sub(r' ssl:<[^>]*>', '', said)}"
        return Failure("error", detail, True, retry_after(error), unreachable, throttled)
    return Failure("error", detail)


def status_of(error: BaseException) -> int | None:
    """The HTTP status of an error; for a code in words, such as ``rate_limit_exceeded``, the status it stands for."""
    code = getattr(error, "status_code", None)
    try:
        return int(code)
    except (TypeError, ValueError, OverflowError):
        words = code if isinstance(code, str) else ""
        return next((status for status, pattern in _CODES.items() if pattern.search(words)), None)


def _is_too_long(said: str) -> bool:
    return bool(_TOO_LONG.search(said)) and not _NOT_TOO_LONG.search(said)


def _refused_parameter(said: str, sent: Mapping) -> str:
    named = next((name for name in sent if re.search(rf"\b{re.escape(name)}\b", said)), None)
    if named is None:
        return "The provider does not accept a parameter; nothing was dropped in silence."
    return (
        f"The provider does not accept {named}={sent[named]!r}, and it was not dropped in silence: ask for another "
        f"value, or send without it by model_options={{'drop': [{named!r}]}}."
    )


def retry_after(error: BaseException, now: datetime | None = None) -> float | None:
    """Seconds the provider asks to wait; None if it does not say.

    Read from ``retry-after-ms`` or ``Retry-After`` (seconds or a date), else from the words of Gemini
    (``"retryDelay": "34s"``) and Groq (``try again in 1m7.6s``).
    """
    sources = (
        getattr(error, "litellm_response_headers", None),
        getattr(getattr(error, "response", None), "headers", None),
    )
    for headers in sources:
        exact = _number(headers.get("retry-after-ms")) if headers else None
        if exact is not None:
            return exact / 1000
        value = (headers.get("retry-after") or headers.get("Retry-After")) if headers else None
        if value is None:
            continue
        if (seconds := _number(value)) is not None:
            return seconds
        try:
            until = parsedate_to_datetime(value)
        except (TypeError, ValueError, OverflowError):
            continue
        until = until if until.tzinfo else until.replace(tzinfo=UTC)
        try:
            return max(0.0, (until - (now or datetime.now(UTC))).total_seconds())
        except OverflowError:  # a day before the first or after the last that there is
            return 0.0 if until.year < 2000 else math.inf
    told = _WORDS_WAIT.search(str(error)[:LONGEST])
    if told is None:
        return None
    hours, minutes, seconds, thousandths = (float(part or 0) for part in told.groups())
    return hours * 3600 + minutes * 60 + seconds + thousandths / 1000


def _number(value: object) -> float | None:
    try:
        return max(0.0, float(value))
    except (TypeError, ValueError):
        return None
