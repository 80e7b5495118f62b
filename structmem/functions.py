"""Python functions as models."""

from __future__ import annotations

import asyncio
import inspect
import math
import numbers
import threading
from collections.abc import Callable, Mapping
from functools import lru_cache

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
    try:
        async with asyncio.timeout(timeout_s):
            if _is_async(function):
                answer = await function(*arguments)
            else:
                answer, error = await _in_thread(function, arguments)
                if error is not None:
                    raise error
                answer = await answer if inspect.isawaitable(answer) else answer
    except StructmemError:
        raise
    except TimeoutError:
        return Failure("timeout", f"No answer within {timeout_s:g} s.")
    except asyncio.CancelledError:
        if asyncio.current_task().cancelling():  # else the function's own doing, such as a library's inner timeout
            raise
        return Failure("error", "The function cancelled itself.", retry=True)
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # the last two would stop the loop of all calls
        bug = isinstance(error, _BUGS)
        return Failure("error", f"{type(error).__name__}: {error}", setup=bug)
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


async def _in_thread(function: Callable, arguments: tuple) -> tuple[object, BaseException | None]:
    """What a function returned, and what it raised.

    A thread of its own for each call, and a daemon: an executor's threads are waited for when the program ends, so that
    a function that never returns would keep it from ending. An error is handed over as a value, since a future refuses
    StopIteration, which ``next()`` raises in many a scripted model.
    """
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def tell(outcome: tuple) -> None:
        if not done.done():
            done.set_result(outcome)

    def work() -> None:
        try:
            outcome = function(*arguments), None
        except BaseException as error:  # noqa: BLE001
            outcome = None, error
        try:
            loop.call_soon_threadsafe(tell, outcome)
        except RuntimeError:  # the program is ending and the loop is closed
            pass

    threading.Thread(target=work, name="structmem-model", daemon=True).start()
    return await done


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
def _is_async(function: Callable) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


@lru_cache(maxsize=256)
def _takes_request(function: Callable) -> bool:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return False
    placed = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(placed) > 1 and (placed[1].name == "request" or placed[1].default is placed[1].empty)
