"""Any function as an `ask`: the form in which structures and judges reach a model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace

from .calls import Call
from .errors import InputError, StructmemError
from .replytext import ReplyError


def settle(call: Call, accept: Callable | None) -> tuple[Call, object]:
    """Read a reply: ``(call, what accept made of it)``, or the call as ``rejected`` with the reason, and None.

    A stored reply is read anew, since a better reader may use what an older one rejected.
    """
    if accept is None or call.status == "no_response":
        return call, None
    try:
        parsed = accept(call)
    except (StructmemError, ValueError) as error:
        reason = error.reason if isinstance(error, ReplyError) else "invalid"
        return replace(call, status="rejected", status_reason=reason, error=str(error)), None
    return (call if call.status == "ok" else replace(call, status="ok", status_reason=None, error=None)), parsed


def as_ask(function: Callable) -> Callable:
    """Give any function ``fn(messages) -> text`` the form of a client's `ask`; nothing is stored.

    Parameters
    ----------
    function : callable
        A client's `ask` (returned as it is), or a plain or async function that takes messages, and the keywords of
        `ask` if it has ``**kwargs``; it returns a text, a dict as a callable model does, a `Call` or a pair of both.

    Returns
    -------
    callable
        ``await ask(messages, role=…, params=None, accept=None, memories=(), draw=0, tries=3, seen=None)`` →
        ``(Call, parsed)``; the call of each attempt is added to the list `seen`.
    """
    if getattr(function, "is_asker", False):
        return function
    if not callable(function):
        raise InputError(f"ask must be a function of messages, or client.asker(MODEL); got {function!r:.100}.")
    wants_more = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(function).parameters.values())

    async def ask(messages, *, role, params=None, accept=None, memories=(), draw=0, tries=3, compute=None, seen=None):
        seen = [] if seen is None else seen
        more = {"role": role, "params": params, "accept": accept, "memories": memories, "draw": draw}
        for attempt in range(tries if accept is not None else 1):
            answer = compute(messages) if compute else function(messages, **(more if wants_more else {}))
            answer = await answer if inspect.isawaitable(answer) else answer
            if isinstance(answer, tuple):
                seen.append(answer[0])
                return answer
            call = answer if isinstance(answer, Call) else _call(answer, role, draw, attempt)
            call, parsed = settle(call, accept)
            seen.append(call)
            if call.status != "rejected" or call.truncated:
                break
        return call, parsed

    ask.is_asker = True
    return ask


def _call(answer: str | Mapping | None, role: str, draw: int, attempt: int) -> Call:
    fields = dict(answer) if isinstance(answer, Mapping) else {"text": answer}
    if not isinstance(fields.get("text"), str | None):
        raise InputError(f"ask must return a text, a dict with 'text', or a Call; got {answer!r:.100}.")
    status = ("ok", None) if fields.get("text") else ("no_response", "empty")
    cut = fields.get("finish_reason") in ("length", "max_tokens")
    return Call("", *status, **fields, truncated=cut, role=role, replicate=draw, attempt=attempt)
