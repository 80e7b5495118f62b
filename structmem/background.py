"""The one background event loop of the process, on which every model call runs."""

from __future__ import annotations

import asyncio
import atexit
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
