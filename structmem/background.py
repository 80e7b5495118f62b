"""The one background event loop of the process, on which every model call runs."""

from __future__ import annotations

import asyncio
import atexit
import inspect
import os
import threading
from collections.abc import Callable, Coroutine

from .errors import InputError

# One loop for all clients: the HTTP sessions and the logging queue of litellm belong to the loop that made them.
_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_thread: threading.Thread | None = None
_last_steps: list[Callable[[], Coroutine]] = []


def loop() -> asyncio.AbstractEventLoop:
    """The background loop, started on first use in a daemon thread."""
    global _loop, _thread
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            _loop.slow_callback_duration = 60  # in development mode asyncio would report every import as a slow step
            _thread = threading.Thread(target=_serve, args=(_loop,), name="structmem-loop", daemon=True)
            _thread.start()
            before_exit()
        return _loop


def run_sync(coroutine: Coroutine):
    """Run a coroutine on the background loop and wait for it; also inside a notebook, and as often as you like.

    Ctrl-C cancels it; calls that are already under way finish and are stored while the process lives.

    Raises
    ------
    InputError
        If called from the background loop itself, where waiting would never end.
    """
    if threading.current_thread() is _thread:
        coroutine.close()
        raise InputError("A synchronous function was called inside a model call; await its asynchronous form there.")
    future = asyncio.run_coroutine_threadsafe(coroutine, loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


async def on_loop(coroutine: Coroutine):
    """Await a coroutine on the background loop, from any loop."""
    if threading.current_thread() is _thread:
        return await coroutine
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, loop()))


async def run_apart(
    function: Callable, arguments: tuple, timeout_s: float | None
) -> tuple[object, BaseException | None]:
    """What a user's function returned, or what it raised; a plain one runs in a thread, so that it holds nobody up.

    Whatever it raises is its own affair, also what would end the loop; only a true cancellation is raised here.
    """
    try:
        async with asyncio.timeout(timeout_s):
            if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
                return await function(*arguments), None
            answer, error = await _in_thread(function, arguments)
            return (await answer if inspect.isawaitable(answer) else answer), error
    except asyncio.CancelledError as error:
        if asyncio.current_task().cancelling():  # else the function's own doing, such as a library's inner timeout
            raise
        return None, error
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # the last two would stop the loop of all calls
        return None, error


async def _in_thread(function: Callable, arguments: tuple) -> tuple[object, BaseException | None]:
    """What a function returned, and what it raised.

    A thread of its own for each call, and a daemon: an executor's threads are waited for when the program ends, so that
    a function that never returns would keep it from ending. An error is handed over as a value, since a future refuses
    StopIteration, which ``next()`` raises in many a scripted model.
    """
    done = asyncio.get_running_loop().create_future()
    tell_loop = asyncio.get_running_loop().call_soon_threadsafe

    def tell(outcome: tuple) -> None:
        if not done.done():
            done.set_result(outcome)

    def work() -> None:
        try:
            outcome = function(*arguments), None
        except BaseException as error:  # noqa: BLE001
            outcome = None, error
        try:
            tell_loop(tell, outcome)
        except RuntimeError:  # the program is ending and the loop is closed
            pass

    threading.Thread(target=work, name="structmem-function", daemon=True).start()
    return await done


def before_exit(step: Callable[[], Coroutine] | None = None) -> None:
    """Add a last step for the loop; stopping it moves to the front of the exit queue, before others' own handlers."""
    if step is not None:
        _last_steps.append(step)
    atexit.unregister(_stop)
    atexit.register(_stop)


def _serve(running: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(running)
    running.run_forever()


async def _finish() -> None:
    for step in _last_steps:
        try:
            await asyncio.wait_for(step(), 5)
            await asyncio.sleep(0.1)  # closing connections takes a few turns of the loop
        except Exception:  # noqa: S110 - nothing may disturb the end of the program
            pass
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _stop() -> None:
    global _loop, _thread
    running, thread, _loop, _thread = _loop, _thread, None, None
    if running is None or thread is None or not thread.is_alive():
        return
    try:
        asyncio.run_coroutine_threadsafe(_finish(), running).result(timeout=10)
    except Exception:  # noqa: S110
        pass
    running.call_soon_threadsafe(running.stop)
    thread.join(timeout=5)
    if not thread.is_alive():
        running.close()


def _after_fork() -> None:
    """A forked child has the loop but not its thread: it starts its own."""
    global _loop, _thread, _lock
    _loop, _thread, _lock = None, None, threading.Lock()
    _last_steps.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
