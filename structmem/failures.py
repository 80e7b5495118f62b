"""What a failed request means: whether it may be tried again, and in which words it is reported."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

LONGEST = 20_000  # characters of an error that are looked at; it is cut for good once keys are hidden


def _any(*patterns: str) -> re.Pattern:
    return re.compile("|".join(patterns), re.IGNORECASE)


_TOO_LONG = _any(
    r"context[ _-]?(?:length|window|size)", r"maximum context", r"too large for model with", r"prompt is too long",
    r"too many (?:input )?tokens", r"input (?:is|length|token count).{0,40}(?:too long|exceed)", r"reduce the length",
    r"exceeds? the (?:available|maximum).{0,30}(?:context|tokens)",
)  # fmt: skip
_FILTERED = _any(r"content[ _]?(?:filter|policy|management)", r"safety (?:system|filter)", r"responsible ai")
_UNSUPPORTED = _any(
    r"unsupported[ _](?:value|param)", r"does not support", r"(?:is|are) not supported",
    r"not supported (?:param|with)", r"unrecognized (?:request )?argument", r"only the default \(1\)",
)  # fmt: skip
_NO_MODEL = _any(r"(?:not a valid|no such|unknown|invalid) model", r"model\b.{0,80}(?:not found|does not exist)")
# Said of a missing key or library by litellm itself, with the status of a server's fault.
_NOT_SET_UP = _any(r"missing credentials", r"no module named", r"api_key client option must be set")
_NO_MONEY = _any(r"insufficient[ _](?:quota|credit|balance|funds)", r"exceeded your current quota")
_UNREACHABLE = _any(
    r"cannot connect", r"connection refused", r"connection error", r"connect call failed",
    r"name or service", r"getaddrinfo",
)  # fmt: skip


@dataclass(frozen=True)
class Failure:
    """No answer: `reason` is timeout, error, too_long or filtered.

    `retry`: the same request may work later, after `wait_s` seconds if the provider said so. `setup`: key, address or
    model name are wrong, so that every other call would fail too.
    """

    reason: str
    detail: str
    retry: bool = False
    wait_s: float | None = None
    setup: bool = False


def classify(error: BaseException, timeout_s: float, sent: Mapping | None = None) -> Failure:
    """Name an exception by status and words, not by class: litellm's classes differ between routes for one answer.

    Parameters
    ----------
    error : BaseException
    timeout_s : float
        Seconds that were allowed.
    sent : mapping, optional
        Parameters that were sent, to name the one that was not accepted.
    """
    status, kind = getattr(error, "status_code", None), type(error).__name__
    said = re.sub(r"\s+", " ", str(error).split("Traceback (most recent call last)")[0]).strip()[:LONGEST]
    detail = f"{kind}{f' (HTTP {status})' if status else ''}: {said}"
    if isinstance(error, TimeoutError) or "Timeout" in kind or status == 408:
        return Failure("timeout", f"No answer within {timeout_s:g} s.", retry=True)
    if kind == "ContextWindowExceededError" or (status in (400, 413, 422) and _TOO_LONG.search(said)):
        return Failure("too_long", detail)
    if kind == "ContentPolicyViolationError" or (status == 400 and _FILTERED.search(said)):
        return Failure("filtered", detail)
    if kind == "UnsupportedParamsError" or (status in (400, 422) and _UNSUPPORTED.search(said)):
        return Failure("error", f"{_refused_parameter(said, sent or {})} {detail}")
    if "Invalid response object" in said:
        return Failure("error", f"The reply has a shape that cannot be read. {detail}")
    if status == 429:
        return Failure("error", detail, retry=not _NO_MONEY.search(said), wait_s=retry_after(error))
    if _NOT_SET_UP.search(said) or status in (401, 402, 403, 404) or (status == 400 and _NO_MODEL.search(said)):
        return Failure("error", detail, setup=True)
    if (status or 0) >= 500 or "Connection" in kind or isinstance(error, OSError):
        return Failure("error", detail, True, retry_after(error), setup=bool(_UNREACHABLE.search(said)))
    return Failure("error", detail)


def _refused_parameter(said: str, sent: Mapping) -> str:
    named = next((name for name in sent if re.search(rf"\b{re.escape(name)}\b", said)), None)
    if named is None:
        return "The provider does not accept a parameter; nothing was dropped in silence."
    return (
        f"The provider does not accept {named}={sent[named]!r}, and it was not dropped in silence: ask for another "
        f"value, or send without it by model_options={{'drop': [{named!r}]}}."
    )


def retry_after(error: BaseException, now: datetime | None = None) -> float | None:
    """Seconds the provider asks to wait, from ``Retry-After`` as seconds or as a date; None if it does not say."""
    sources = (
        getattr(error, "litellm_response_headers", None),
        getattr(getattr(error, "response", None), "headers", None),
    )
    for headers in sources:
        value = (headers.get("retry-after") or headers.get("Retry-After")) if headers else None
        if value is None:
            continue
        try:
            return max(0.0, float(value))
        except ValueError:
            pass
        try:
            until = parsedate_to_datetime(value)
        except (TypeError, ValueError):
            continue
        until = until if until.tzinfo else until.replace(tzinfo=UTC)
        return max(0.0, (until - (now or datetime.now(UTC))).total_seconds())
    return None
