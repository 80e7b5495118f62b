"""Reads what a provider sent back: visible text, thinking kept apart, counts, and why there is no usable answer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from .cut import cut_prompt
from .replytext import is_blank, split_reasoning, text_of

# litellm calls every reason to stop that it does not know "stop", also these, of Mistral, vLLM and OpenRouter.
_CUT = frozenset({"length", "max_tokens", "max_output_tokens", "max_length", "model_length", "token_limit"})
PAID = ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens", "cost_usd")
MOST_TOKENS, MOST_DOLLARS = 10**12, 1e9  # of one request; a larger number is an error, and a sum of them might overflow
_BROKEN = frozenset({"error", "abort", "aborted", "cancelled", "canceled"})


@dataclass(frozen=True)
class Reply:
    """What a model said; `reason` is None for a usable answer, else refused, filtered, empty, too_long or error.

    `detail` says more. Counts are tokens, `cost_usd` is US dollars; None means unknown.
    """

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


class _Fields(dict):
    """A decoded JSON object whose names can be read like attributes, as litellm's objects are."""

    __getattr__ = dict.get


def from_json(text: object) -> _Fields | None:
    """A chat completion from the text of a response body; None if it is none."""
    try:
        found = json.loads(text, object_hook=_Fields)
    except (TypeError, ValueError, RecursionError):
        return None
    if not isinstance(found, _Fields) or not isinstance(found.choices, list):
        return None
    return None if found.error and not found.choices else found


def read_replies(
    response, route: str, *, texts: Iterable[str] = (), cost: float | None = None, adds_cached: bool = False,
    most: int | None = None,
) -> list[Reply]:  # fmt: skip
    """One `Reply` for each choice of a chat completion; without choices one that says so.

    Parameters
    ----------
    response : object
        litellm's response, or one of `from_json`.
    route : str
        The provider, where the response does not name one.
    texts : iterable of str
        The texts that were sent, to see whether the server has cut them.
    cost : float, optional
        US dollars of the request, where the provider does not say them itself.
    adds_cached : bool
        Whether tokens read from a cache may stand beside the prompt tokens, instead of being a part of them.
    most : int, optional
        Choices that were asked for: more are left out, and what they cost falls to the others.

    Returns
    -------
    list of Reply
        Tokens and cost of the request are shared out so that their sums are right; the first reply takes the rest.
        A reply that the provider broke off (`reason` error) is only there if all are.
    """
    usage = getattr(response, "usage", None)
    counted = _counts(usage)
    said = dollars(getattr(usage, "cost", None))
    cost = cost if said is None else said
    hidden = getattr(response, "_hidden_params", None) or {}
    common = Reply(
        None,
        served_model=hidden.get("provider_response_model") or getattr(response, "model", None),
        provider=getattr(response, "provider", None) or route,
    )
    choices = getattr(response, "choices", None) or []
    replies = [_read_choice(choice, common) for choice in choices]
    replies = [reply for reply in replies if reply.reason != "error"] or replies
    replies = replies[:most] or [replace(common, reason="empty", detail="The reply holds no choice at all.")]
    read, cached = counted["input_tokens"], counted["cached_tokens"] or 0
    if read and (adds_cached or cached > read):
        read += cached
    if cut := cut_prompt(texts, read):
        replies = [replace(reply, reason="too_long", detail=cut) for reply in replies]
    return share(replies, counted | {"cost_usd": cost})


def share(replies: list[Reply], totals: Mapping[str, float | None]) -> list[Reply]:
    """Give each reply its part of the counts of a joint request; whole numbers stay whole, the first takes the rest."""
    number = len(replies)
    parts = {
        name: total // number if isinstance(total, int) else total / number
        for name, total in totals.items()
        if total is not None
    }
    rest = {name: totals[name] - part * (number - 1) for name, part in parts.items()}
    return [replace(reply, **(parts if place else rest)) for place, reply in enumerate(replies)]


def add_paid(reply: Reply, others: Iterable[Reply]) -> Reply:
    """A reply with the counts and the cost of others added that were paid for in vain; unknown ones add nothing."""
    sums = {}
    for name in PAID:
        known = [value for one in (reply, *others) if (value := getattr(one, name)) is not None]
        sums[name] = sum(known) if known else None
    return replace(reply, **sums)


def _counts(usage: object) -> dict[str, int | None]:
    given, made = (count(getattr(usage, name, None)) for name in ("prompt_tokens", "completion_tokens"))
    if not given:  # litellm writes 0 where a server does not count; no prompt is without a token
        given, made = None, made or None
    details = getattr(usage, "prompt_tokens_details", None)
    cached = (
        getattr(details, "cached_tokens", None),
        getattr(usage, "cache_read_input_tokens", None),  # Anthropic and Bedrock
        getattr(usage, "prompt_cache_hit_tokens", None),  # DeepSeek
        getattr(usage, "cached_tokens", None),  # Moonshot and others that do not nest it
    )
    thought = getattr(getattr(usage, "completion_tokens_details", None), "reasoning_tokens", None)
    return {
        "input_tokens": given,
        "output_tokens": made,
        "cached_tokens": max((number for number in map(count, cached) if number is not None), default=None),
        "reasoning_tokens": count(thought),
    }


def count(value: object) -> int | None:
    """A number of tokens; None for what is none: words, fractions, below 0, or more than any text has."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < MOST_TOKENS:
        return None
    return int(value) if value == int(value) else None


def dollars(value: object) -> float | None:
    """A cost in US dollars; None for what is none."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < MOST_DOLLARS
    return float(value) if good else None


def _read_choice(choice: object, common: Reply) -> Reply:
    message, finish = getattr(choice, "message", None), getattr(choice, "finish_reason", None)
    extra, more = (getattr(part, "provider_specific_fields", None) or {} for part in (message, choice))
    native = str(more.get("native_finish_reason") or getattr(choice, "native_finish_reason", None) or finish).lower()
    broken = more.get("error") or getattr(choice, "error", None) or (finish if native in _BROKEN else None)
    finish = "length" if native in _CUT else finish
    text, inside = visible(getattr(message, "content", None))
    thought = _thinking(message, extra, inside)
    refusal = getattr(message, "refusal", None) or extra.get("refusal")
    reason, detail = None, None
    if broken:
        said = broken.get("message", "no words given") if isinstance(broken, Mapping) else f"finish_reason {native!r}"
        reason, detail = "error", f"The provider broke off the answer: {said}"
    elif refusal or finish == "refusal":
        reason, detail = "refused", f"The model refused: {refusal or text or 'no words given'}"
    elif finish == "content_filter":
        reason, detail = "filtered", "The provider's content filter stopped the answer."
    elif is_blank(text):
        what = "only reasoning" if thought else "no text at all" if not text else "only blanks"
        reason, detail = "empty", f"The reply has no visible text: {what} (finish_reason {finish!r})."
    return replace(common, text=text, reasoning=thought, finish_reason=finish, reason=reason, detail=detail)


def _thinking(message: object, extra: Mapping, inside: str | None) -> str | None:
    """The model's thinking from wherever providers put it, each text once."""
    found = [
        getattr(message, "reasoning_content", None) or extra.get("reasoning_content"),
        getattr(message, "reasoning", None) or extra.get("reasoning"),
    ]
    blocks = getattr(message, "thinking_blocks", None) or extra.get("thinking_blocks") or extra.get("reasoning_details")
    found += [text_of(blocks)[1] if isinstance(blocks, list) else None, inside]
    texts = dict.fromkeys(text.strip() for text in found if isinstance(text, str) and not is_blank(text))
    return "\n".join(texts) or None


def visible(content: object) -> tuple[str | None, str | None]:
    """Visible text and thinking of a reply's content."""
    text, thought = text_of(content)
    if text is None:
        return None, thought
    text, more = split_reasoning(text)
    return text, "\n".join(part for part in (thought, more) if part) or None
