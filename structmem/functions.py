"""Python functions as models."""

from __future__ import annotations

import asyncio
import inspect
import math
import numbers
from collections.abc import Callable, Mapping
from functools import lru_cache

from .background import run_apart
from .calls import Request, model_label
from .errors import InputError, StructmemError
from .failures import Failure
from .replytext import is_blank
from .transport import Reply, visible

_BUGS = TypeError | NameError | AttributeError | ImportError | LookupError | StopIteration | SystemExit
FIELDS = ("text", "reasoning", "finish_reason", "input_tokens", "output_tokens", "cached_tokens", "cost_usd")


async def call_function(request: Request, timeout_s: float) -> Reply | Failure:
    """Ask a Python function; a synchronous one runs in a thread, so that a slow one holds nobody up.

    Raises
    ------
    InputError
        If it returns neither a text nor a dict of `FIELDS`, or a value of another kind.
    """
    function, messages = request.model, [dict(message) for message in request.messages]
    arguments = (messages, request) if _takes_request(function) else (messages,)
    answer, error = await run_apart(function, arguments, timeout_s)
    if isinstance(error, StructmemError):
        raise error
    if isinstance(error, TimeoutError):
        return Failure("timeout", f"No answer within {timeout_s:g} s.")
    if isinstance(error, asyncio.CancelledError):
        return Failure("error", "The function cancelled itself.", retry=True)
    if error is not None:
        return Failure("error", f"{type(error).__name__}: {error}", setup=isinstance(error, _BUGS))
    if answer is None or isinstance(answer, str):
        answer = {"text": answer}
    if not isinstance(answer, Mapping) or set(answer) - set(FIELDS):
        raise InputError(
            f"The callable model {model_label(function)!r} must return a text or a dict of {list(FIELDS)}, "
            f"got {type(answer).__name__}{f' with {list(answer)}' if isinstance(answer, Mapping) else ''}."
        )
    answer = {name: _plain(name, value, function) for name, value in answer.items()}
    text, thought = visible(answer.get("text"))
    blank = is_blank(text)
    return Reply(
        **answer | {"text": text, "reasoning": answer.get("reasoning") or thought},
        served_model=model_label(function), provider="python",
        reason="empty" if blank else None, detail="The function returned no text." if blank else None,
    )  # fmt: skip


def _plain(name: str, value: object, function: Callable) -> object:
    """A field of an answer as the store takes it; numpy's numbers become plain ones."""
    if value is None:
        return None
    if name.endswith("_tokens"):
        good, expected = isinstance(value, numbers.Integral) and 0 <= value < 2**53, "a whole number from 0"
        plain = int
    elif name == "cost_usd":
        good, expected = isinstance(value, numbers.Real) and math.isfinite(value) and value >= 0, "dollars from 0"
        plain = float
    else:
        good, expected, plain = isinstance(value, str), "a text", str
    if not good or isinstance(value, bool):
        raise InputError(
            f"The callable model {model_label(function)!r} gave {name} = {value!r:.60}; expected {expected} or None."
        )
    return plain(value)


@lru_cache(maxsize=256)
def _takes_request(function: Callable) -> bool:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return False
    placed = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(placed) > 1 and (placed[1].name == "request" or placed[1].default is placed[1].empty)
