"""Calls under way: one for each key however many wait for it, kept from their being sent until they are stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial

from .asks import settle
from .calls import Call, Request
from .errors import SetupError
from .generations import Together
from .sending import Flight, Sender, Trip
from .store import Store

_SHARED = ("model", "messages", "role", "params", "options", "replicate", "attempt")


class Underway:
    """The calls that a client is making.

    Parameters
    ----------
    store : Store
        Where every reply is put before anybody is told of it.
    sender : Sender
    """

    def __init__(self, store: Store, sender: Sender):
        self.store, self.sender = store, sender
        self.flights: dict[str, Flight] = {}
        self._takes_n: dict[tuple, bool | None] = {}
        self._others: set[Trip] = set()
        self._closing = False

    async def ask(self, key: str, request: Request, accept: Callable | None) -> tuple[Call, object]:
        """Join the call if it is under way, else make it; one who is cancelled does not take it from the others."""
        flight = self._joinable(key)
        if flight is None:
            flight = self.flights[key] = Flight(key, request, accept, self.store.get)
            self._start(flight)
        waiter = flight.join()
        try:
            call, parsed, used = await flight.arrive(waiter)
        finally:
            flight.leave(waiter)
        return (call, parsed) if used is accept else settle(call, accept)

    def depart(self, requests: Mapping[str, Request]) -> None:
        """Make the calls that are not under way yet, in one request if they differ in their generation only."""
        flights = [
            Flight(key, request, None, self.store.get)
            for key, request in requests.items()
            if self._joinable(key) is None
        ]
        self.flights |= {flight.key: flight for flight in flights}
        shared = [[getattr(flight.request, name) for name in _SHARED] for flight in flights]
        if len(flights) > 1 and shared.count(shared[0]) == len(shared):
            trip = Together(flights, self.sender, self._takes_n, self._alone, self._keep_part, self._look)
            trip.task = asyncio.create_task(trip.fly())
            trip.task.add_done_callback(partial(self._ended_together, trip))
        else:
            for flight in flights:
                self._start(flight)

    def task(self, key: str) -> asyncio.Task:
        """A task that waits for a call under way."""
        flight = self.flights[key]
        waiter = flight.join()  # now, since a task that is cancelled early never begins

        async def arrive() -> Call:
            return (await flight.arrive(waiter))[0]

        task = asyncio.create_task(arrive())
        task.add_done_callback(lambda _: flight.leave(waiter))
        return task

    async def finishing(self, trip: Trip, coroutine: Coroutine):
        """Await a coroutine that makes a request of its own kind; once it is sent, it finishes whoever is cancelled."""
        trip.task = asyncio.create_task(coroutine)
        self._others.add(trip)
        trip.task.add_done_callback(lambda task: (self._others.discard(trip), task.cancelled() or task.exception()))
        try:
            return await asyncio.shield(trip.task)
        except asyncio.CancelledError:
            if not trip.sending:
                trip.task.cancel()
            raise

    def _joinable(self, key: str) -> Flight | None:
        flight = self.flights.get(key)
        return None if flight is None or flight.trip.dropped else flight

    # -- one call -----------------------------------------------------------------------------------------------------

    def _start(self, flight: Flight) -> None:
        flight.task = asyncio.create_task(self._live(flight))
        flight.task.add_done_callback(partial(self._ended, flight))

    async def _live(self, flight: Flight) -> tuple:
        sender, request = self.sender, flight.request
        way = await sender.way(request)
        sent = {}

        def send():
            nonlocal sent
            sent = dict(way.sent)  # what turns out not to be sent is taken out of it
            return sender.complete(request, way, sent)

        outcome, details = await sender.send_until_done(request, way, send, flight)
        if details is None:
            self.sender.count("stored", request.role)
            return *settle(outcome, flight.accept), flight.accept
        return await self._keep(flight, outcome, sent, details)

    async def _keep(self, flight: Flight, outcome, sent: dict, details: dict) -> tuple:
        """Store what came back: ``(Call, parsed, accept)``."""
        request, accept, sender = flight.request, flight.accept, self.sender
        hopeless = sender.beyond_reach(request, outcome)
        call, parsed = settle(sender.record(flight.key, request, outcome, sent, details), accept)
        if call.status == "rejected":
            sender.counts["rejected"] += 1
            call = replace(call, error=sender.masker.mask(call.error))
        if not await self.keep(call, request) and (first := self.store.get(flight.key)) is not None:
            return *settle(first, accept), accept  # another process was quicker, and a replay will show its reply
        if hopeless:
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

    def _ended(self, flight: Flight, task: asyncio.Task) -> None:
        self._land(flight, asyncio.CancelledError() if task.cancelled() else task.exception() or task.result())

    def _land(self, flight: Flight, landed: tuple | BaseException) -> None:
        if self.flights.get(flight.key) is flight:
            del self.flights[flight.key]
        flight.land(landed)

    # -- several in one request ---------------------------------------------------------------------------------------

    def _alone(self, flight: Flight) -> None:
        """Give one of several its own request, if anybody still waits for it."""
        flight.trip = flight
        if flight.wanted() and not self._closing:
            self._start(flight)
        else:
            self._land(flight, asyncio.CancelledError())

    async def _keep_part(self, flight: Flight, outcome, sent: dict, details: dict) -> None:
        """`_keep` for one of several; what goes wrong does not take the others with it."""
        try:
            landed = await self._keep(flight, outcome, sent, details)
        except Exception as error:
            landed = error
        self._land(flight, landed)

    def _look(self, flights: list[Flight]) -> list[Flight]:
        """Land those that another process has stored; return the rest."""
        found = self.store.get_many([flight.key for flight in flights])
        for flight in flights:
            if flight.key in found:
                self.sender.count("stored", flight.request.role)
                self._land(flight, (found[flight.key], None, None))
        return [flight for flight in flights if flight.key not in found]

    def _ended_together(self, trip: Together, task: asyncio.Task) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        for flight in trip.flights:
            if flight.trip is trip and flight.landed is None:
                self._land(flight, error)

    @property
    def idle(self) -> bool:
        """Whether no call is under way."""
        return not self.flights and not self._others

    # -- the end ------------------------------------------------------------------------------------------------------

    async def finish(self, seconds: float) -> None:
        """Let requests that are paid for finish for a while; drop the others."""
        trips = {flight.trip for flight in self.flights.values()} | self._others
        self._closing = True
        for trip in trips:
            trip.ending = True
            if not trip.sending:
                trip.task.cancel()
        try:
            if trips:
                await asyncio.wait([trip.task for trip in trips], timeout=seconds)
        finally:
            for trip in trips:
                trip.task.cancel()
