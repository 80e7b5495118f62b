"""The client: every model call goes through it; stored, retried, bounded, counted and paid for once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace

from .asks import as_ask, settle
from .background import on_loop, run_sync
from .budget import Budget
from .calls import SORTING, Call, Request, model_label, request_key
from .errors import InputError, MissingCall, StoreError
from .masking import Masker
from .sending import Sender
from .store import open_store
from .underway import Underway

__all__ = ["Client", "as_ask", "default_client", "run_sync"]

# The provider is to be the limit, not the client: each model's own limit backs off when it is throttled.
MAX_CONCURRENCY = 64
_NUMBERED = ("generation", "replicate")  # said of every call
MAX_RETRIES = 6  # where one request in five fails, 4 would lose one call in 3,000, and 6 one in 80,000
FINISH_S = 5  # closing waits this long for calls under way, since they are paid for


class Client:
    """Answers requests from the store, and from the model where the store has no answer.

    Parameters
    ----------
    store : path, Store or Recorded, optional
        Where calls are kept: a SQLite file (default: ``STRUCTMEM_STORE``, else ``data/store.sqlite`` in the project),
        ``":memory:"``, or a folder or ``.jsonl`` file of recorded calls, which is read-only and therefore offline.
    offline : bool
        Answer from the store only; a call that is not there raises `MissingCall`.
    max_concurrency, judge_concurrency : int
        Requests to one model at once, at most: for answers and everything else, and for judges (default: as for
        answers). While a provider throttles, fewer are sent to it. A local model has the slots of its server.
    budget_usd : float, optional
        Hard limit in US dollars for this client; a call that could exceed it raises `BudgetReached` before it is made.
    allow_unpriced : bool
        With a budget, allow models whose price is not known.
    prices : dict, optional
        Own prices: ``{"model id": (dollars per input token, dollars per output token)}``.
    timeout_s : float
        Seconds until a call counts as failed.
    max_retries : int
        Requests after the first for what may pass: HTTP 5xx, timeouts, broken connections, empty replies. With 2 or
        more, refusals for asking too much (HTTP 429) do not count for the first ten minutes.
    announce : callable, optional
        Told once per model and role which texts leave this machine, and for whom. None for silence.
    secrets : iterable of str
        Values to hide from errors and records, besides keys in options and in the environment.
    """

    def __init__(
        self,
        store=None,
        *,
        offline: bool = False,
        max_concurrency: int = MAX_CONCURRENCY,
        judge_concurrency: int | None = None,
        budget_usd: float | None = None,
        allow_unpriced: bool = False,
        prices: Mapping | None = None,
        timeout_s: float = 120,
        max_retries: int = MAX_RETRIES,
        announce: Callable | None = print,
        secrets: Iterable[str] = (),
    ):
        judges = max_concurrency if judge_concurrency is None else judge_concurrency
        limits = {"max_concurrency": max_concurrency, "judge_concurrency": judges, "max_retries": max_retries}
        for name, value in limits.items():
            least = 0 if name == "max_retries" else 1
            if type(value) is not int or value < least:
                raise InputError(f"{name} must be a whole number from {least}, got {value!r}.")
        if type(timeout_s) not in (int, float) or not timeout_s > 0:
            raise InputError(f"timeout_s must be a number of seconds above 0, got {timeout_s!r}.")
        if store is None or store == "":
            from .paths import default_store

            store = default_store()
        budget = Budget(budget_usd, allow_unpriced, prices)
        self._owns_store = isinstance(store, str | os.PathLike)
        self.store = open_store(store, read_only=offline and str(store) != ":memory:")
        self.offline = offline or self.store.read_only
        at_once = {"judge": judges, "other": max_concurrency}
        self.sender = Sender(at_once, budget, timeout_s, max_retries, announce, Masker(secrets))
        self.counts = self.sender.counts
        self.underway = Underway(self.store, self.sender)
        self._closed = False

    # -- asking -------------------------------------------------------------------------------------------------------

    async def acall(self, request: Request, accept: Callable | None = None) -> Call:
        """Answer one request, once.

        Parameters
        ----------
        request : Request
        accept : callable, optional
            ``accept(call)`` returns what the reply means, or raises `ReplyError` or ValueError to reject it.

        Returns
        -------
        Call
            Status ``ok``, ``rejected`` or ``no_response``. A rejected reply is kept, and stays under its key.

        Raises
        ------
        MissingCall
            Offline, and not in the store.
        BudgetReached
            If the call could exceed the budget.
        SetupError
            If the first call of a model shows that key, address or model name are wrong.
        """
        return (await on_loop(self._one(request, accept)))[0]

    def call(self, request: Request, accept: Callable | None = None) -> Call:
        """`acall`, and wait for it."""
        return run_sync(self.acall(request, accept))

    def together(self, requests: Sequence[Request]) -> list[asyncio.Task]:
        """Answer requests that differ in their generation only, in one request where the provider gives several
        replies; to be called on the background loop.

        Parameters
        ----------
        requests : sequence of Request
            Those that differ in more (a seed) are sent singly.

        Returns
        -------
        list of asyncio.Task
            One for each request, with what `acall` would give or raise. Cancelling one does not take the reply from
            the others, and what was sent is stored. A request that can have no key fails them all.
        """
        if self._closed:
            raise StoreError("The client is closed; make a new one.")
        try:
            keys = [request_key(request) for request in requests]
        except InputError as error:
            return [asyncio.create_task(_raised(error)) for _ in requests]
        stored = self.store.get_many(keys)
        if self.offline:
            new = {}
        else:
            new = {key: request for key, request in zip(keys, requests, strict=True) if key not in stored}
            self.underway.depart(new)
        tasks = []
        for key, request in zip(keys, requests, strict=True):
            if key in new:
                tasks.append(self.underway.task(key))
            else:
                known = _given(self.from_store(stored[key])) if key in stored else self.acall(request)
                tasks.append(asyncio.create_task(known))
        return tasks

    def stored(self, requests: Iterable[Request]) -> list[Call | None]:
        """What the store holds for each request, looked up in bulk and counted; None where a call would be made.

        Offline these are also the last failures, which `acall` would give. Nothing is sent.
        """
        keys = [request_key(request) for request in requests]
        found = self.store.get_many(keys)
        if self.offline:
            found |= {key: call for key in set(keys) - found.keys() if (call := self.store.last_failure(key))}
        return [self.from_store(found[key]) if key in found else None for key in keys]

    def check_priced(self, models: Iterable) -> None:
        """Refuse models whose price is not known, if this client has a budget; call it before the first request.

        Raises
        ------
        InputError
            With the models' names.
        """
        self.sender.budget.check(models)

    async def aask(
        self, request: Request, accept: Callable, tries: int = 3, seen: list[Call] | None = None
    ) -> tuple[Call, object]:
        """Answer one request with a usable reply, asking again (next attempt) while it is rejected.

        Stored rejected attempts are passed over; `tries` counts new ones. A truncated reply is not asked for again,
        since the same request would be cut again. The call of each attempt, stored or new, is added to `seen`.

        Returns
        -------
        (Call, object)
            The call and what `accept` returned for it; the last call and None if no reply was usable.
        """
        return await on_loop(self._ask(request, accept, tries, seen))

    async def aembed(self, model, texts: Sequence[str], options: Mapping | None = None) -> list[list[float]]:
        """Embed texts with a litellm embedding model; one stored call per text, numbers rounded to 6 decimals."""
        from .vectors import embed

        return await on_loop(embed(self, model, list(texts), dict(options or {})))

    def run_sync(self, coroutine: Coroutine):
        """Run a coroutine on the background loop and wait for it; works inside a notebook and as often as you like."""
        return run_sync(coroutine)

    def asker(
        self, model, options: Mapping | None = None, *, params: Mapping | None = None, generation: int = 0,
        replicate: int = 0, tags: Mapping | None = None,
    ) -> Callable:  # fmt: skip
        """The `ask` that structures and judges are given: they reach this model and nothing else.

        Returns
        -------
        callable
            ``await ask(messages, role=…, params=None, accept=None, memories=(), draw=0, tries=3, compute=None,
            seen=None)`` returns ``(Call, parsed)`` and adds the call of each attempt to the list `seen`.
            `draw` takes the place of `replicate` for sorting roles, so that all replicates share a partition;
            `compute`, a callable model, takes the place of `model`.
        """

        async def ask(
            messages, *, role, params=None, accept=None, memories=(), draw=0, tries=3, compute=None, seen=None
        ):
            request = Request(
                compute or model, tuple(messages), role, given | dict(params or {}), dict(options or {}),
                generation, draw if role in SORTING else replicate, 0, tuple(memories), dict(tags or {}),
            )  # fmt: skip
            if accept is not None:
                return await self.aask(request, accept, tries, seen)
            call = await self.acall(request)
            if seen is not None:
                seen.append(call)
            return call, None

        async def embed(texts):
            return await self.aembed(model, texts, options)

        given = dict(params or {})
        ask.is_asker, ask.embed = True, embed
        return ask

    # -- one call -----------------------------------------------------------------------------------------------------

    async def _ask(self, request: Request, accept: Callable, tries: int, seen: list | None) -> tuple[Call, object]:
        last, new = None, 0
        while True:
            try:
                call, parsed = await self._one(request, accept)
            except MissingCall:
                if last is None:
                    raise
                return last, None
            if seen is not None:
                seen.append(call)
            if call.status != "rejected":
                return call, parsed
            last, new = call, new + (not call.from_store)
            if call.truncated or call.status_reason == "truncated" or new >= tries:
                return call, None
            request = replace(request, attempt=request.attempt + 1)

    async def _one(self, request: Request, accept: Callable | None) -> tuple[Call, object]:
        if self._closed:
            raise StoreError("The client is closed; make a new one.")
        key = request_key(request)
        call = self.store.get(key)
        if call is None and self.offline:
            call = self.store.last_failure(key)
            if call is None:
                raise self.missing(key, request)
        if call is not None:
            return settle(self.from_store(call), accept)
        return await self.underway.ask(key, request, accept)

    def from_store(self, call: Call) -> Call:
        """Count a call that was not made again."""
        self.sender.count("stored", call.role)
        return call

    def missing(self, key: str, request: Request) -> MissingCall:
        """The error for a call that the store does not hold, offline."""
        named = [f"{name} {value}" for name, value in request.tags.items() if value and name not in _NUMBERED]
        what = [
            f"role {request.role}", f"model {model_label(request.model)!r}", *named,
            f"generation {request.generation}", f"replicate {request.replicate}", f"key {key[:12]}",
        ]  # fmt: skip
        return MissingCall(
            f"Offline, and the call is not in {self.store.path}: {', '.join(what)}. A notebook makes new calls with "
            "an empty store (-p store=), run with offline=False and a store that can be written; or use the settings "
            "the calls were recorded with."
        )

    # -- closing ------------------------------------------------------------------------------------------------------

    @property
    def spent_usd(self) -> float:
        """Dollars spent by this client, as far as prices are known."""
        return self.sender.budget.spent_usd

    def close(self, finish_s: float = FINISH_S) -> None:
        """Let requests that are out come back and store them, for `finish_s` seconds at most, then close the store.

        Doing it twice is fine. From a coroutine: ``await client.aclose()``.
        """
        if self._closed:
            return
        self._closed = True
        try:
            if not self.underway.idle:
                run_sync(self.underway.finish(finish_s))
        finally:
            if self._owns_store:
                self.store.close()

    async def aclose(self, finish_s: float = FINISH_S) -> None:
        """`close` that does not hold up the caller's loop; one who is cancelled meanwhile still waits for its end."""
        closing = asyncio.get_running_loop().run_in_executor(None, self.close, finish_s)
        cancelled = None
        while not closing.done():
            try:
                await asyncio.shield(closing)
            except asyncio.CancelledError as error:
                cancelled = error
        closing.result()
        if cancelled is not None:
            raise cancelled

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_) -> None:
        self.close()


async def _given(call: Call) -> Call:
    return call


async def _raised(error: Exception) -> Call:
    raise error


_clients: dict[str, Client] = {}


def default_client(store: str | os.PathLike | None = None) -> Client:
    """The client of this process for `store` (default: the project's own), made on first use and shared."""
    from .paths import default_store

    place = str(store or default_store())
    if place not in _clients or _clients[place]._closed:
        _clients[place] = Client(place)
    return _clients[place]
