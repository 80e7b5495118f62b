"""The client: every model call goes through it; stored, retried, bounded, counted and paid for once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from .asks import as_ask, settle
from .background import on_loop, run_sync
from .budget import Budget
from .calls import Call, Request, model_label, request_key
from .errors import InputError, MissingCall, SetupError, StoreError
from .masking import Masker
from .sending import Flight, Sender
from .store import open_store

__all__ = ["Client", "as_ask", "default_client", "run_sync"]

FINISH_S = 5  # closing waits this long for calls under way, since they are paid for

_SORTING = ("classifier", "proposer", "structurer")


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
        Calls at once for answers and everything else, and for judges (default: as for answers). A local model
        has its own limit, the slots of its server.
    budget_usd : float, optional
        Hard limit in US dollars for this client; a call that could exceed it raises `BudgetReached` before it is made.
    allow_unpriced : bool
        With a budget, allow models whose price is not known.
    prices : dict, optional
        Own prices: ``{"model id": (dollars per input token, dollars per output token)}``.
    timeout_s : float
        Seconds until a call counts as failed.
    max_retries : int
        Requests after the first for what may pass: HTTP 429 and 5xx, timeouts, broken connections, empty replies.
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
        max_concurrency: int = 8,
        judge_concurrency: int | None = None,
        budget_usd: float | None = None,
        allow_unpriced: bool = False,
        prices: Mapping | None = None,
        timeout_s: float = 120,
        max_retries: int = 4,
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
        self._flights: dict[str, Flight] = {}
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

    async def aask(self, request: Request, accept: Callable, tries: int = 3) -> tuple[Call, object]:
        """Answer one request with a usable reply, asking again (next attempt) while it is rejected.

        Stored rejected attempts are passed over; `tries` counts new ones. A truncated reply is not asked for again,
        since the same request would be cut again.

        Returns
        -------
        (Call, object)
            The call and what `accept` returned for it; the last call and None if no reply was usable.
        """
        return await on_loop(self._ask(request, accept, tries))

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
            ``await ask(messages, role=…, params=None, accept=None, memories=(), draw=0, tries=3, compute=None)``
            returns ``(Call, parsed)``. `draw` takes the place of `replicate` for sorting roles, so that all
            replicates share a partition.
            `compute`, a callable model, takes the place of `model`.
        """

        async def ask(messages, *, role, params=None, accept=None, memories=(), draw=0, tries=3, compute=None):
            request = Request(
                compute or model, tuple(messages), role, given | dict(params or {}), dict(options or {}),
                generation, draw if role in _SORTING else replicate, 0, tuple(memories), dict(tags or {}),
            )  # fmt: skip
            if accept is None:
                return await self.acall(request), None
            return await self.aask(request, accept, tries)

        given = dict(params or {})
        ask.is_asker = True
        return ask

    # -- one call -----------------------------------------------------------------------------------------------------

    async def _ask(self, request: Request, accept: Callable, tries: int) -> tuple[Call, object]:
        last, new = None, 0
        while True:
            try:
                call, parsed = await self._one(request, accept)
            except MissingCall:
                if last is None:
                    raise
                return last, None
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
        call, parsed, used = await self._shared(key, request, accept)
        return (call, parsed) if used is accept else settle(call, accept)

    async def _shared(self, key: str, request: Request, accept: Callable | None) -> tuple:
        """Join the same call if it is under way, else start it."""
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = Flight(key, partial(self.store.get, key))
            flight.task = asyncio.create_task(self._live(flight, request, accept))
            flight.task.add_done_callback(lambda task: self._landed(key, task))
        flight.waiters += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.waiters -= 1
            if not flight.waiters and not flight.sending:  # nobody waits, and nothing is paid yet
                flight.task.cancel()

    def _landed(self, key: str, task: asyncio.Task) -> None:
        self._flights.pop(key, None)
        if not task.cancelled():
            task.exception()  # seen, even when everybody who waited has been cancelled

    async def _live(self, flight: Flight, request: Request, accept: Callable | None) -> tuple:
        call, setup = await self.sender.deliver(request, flight)
        if call.from_store:
            return *settle(self.from_store(call), accept), accept
        call, parsed = settle(call, accept)
        if call.status == "rejected":
            self.counts["rejected"] += 1
            call = replace(call, error=self.sender.masker.mask(call.error))
        if not await self.keep(call, request) and (first := self.store.get(flight.key)) is not None:
            return *settle(first, accept), accept  # another process was quicker, and a replay will show its reply
        if setup:
            raise SetupError(
                f"{call.model!r} cannot be called (role {request.role}): {call.error} "
                "Check model id, key and address; finished calls are kept."
            )
        return call, parsed, accept

    async def keep(self, call: Call, request: Request) -> bool:
        """Store a call and wait until it is written; False if one of its key may have been there before."""
        written = self.store.submit(call, request)
        if not written.done():
            await asyncio.wrap_future(written)
        return written.result()

    def from_store(self, call: Call) -> Call:
        """Count a call that was not made again."""
        self.sender.count("stored", call.role)
        return call

    def missing(self, key: str, request: Request) -> MissingCall:
        """The error for a call that the store does not hold, offline."""
        tags = "".join(
            f", {name} {value}" for name, value in request.tags.items() if name not in ("generation", "replicate")
        )
        return MissingCall(
            f"Offline, and the call is not in {self.store.path}: role {request.role}, "
            f"model {model_label(request.model)!r}{tags}, generation {request.generation}, "
            f"replicate {request.replicate}, key {key[:12]}. Run once with offline=False and a store that can be "
            "written, or use the settings the calls were recorded with."
        )

    # -- closing ------------------------------------------------------------------------------------------------------

    @property
    def spent_usd(self) -> float:
        """Dollars spent by this client, as far as prices are known."""
        return self.sender.budget.spent_usd

    def close(self) -> None:
        """Let calls under way finish (a few seconds), then close the store; doing it twice is fine."""
        if self._closed:
            return
        self._closed = True
        if self._flights:
            run_sync(self._finish())
        if self._owns_store:
            self.store.close()

    async def _finish(self) -> None:
        tasks = [flight.task for flight in self._flights.values()]
        for flight in list(self._flights.values()):
            if not flight.sending:
                flight.task.cancel()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=FINISH_S)
            for task in late:
                task.cancel()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_) -> None:
        self.close()


_clients: dict[str, Client] = {}


def default_client(store: str | os.PathLike | None = None) -> Client:
    """The client of this process for `store` (default: the project's own), made on first use and shared."""
    from .paths import default_store

    place = str(store or default_store())
    if place not in _clients or _clients[place]._closed:
        _clients[place] = Client(place)
    return _clients[place]
