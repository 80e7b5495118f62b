"""Several generations in one request, where the provider gives as many replies as it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from . import transport
from .calls import Request
from .errors import BudgetReached
from .failures import Failure
from .responses import add_paid
from .sending import Flight, Sender, Trip, Way, is_hiccup

EQUAL = 40  # characters from which equal replies are taken for one reply, given several times


class Together(Trip):
    """One request for several generations, where the provider gives as many choices as it is asked for.

    The first group of a model is the probe; while it is out, other groups go singly. A model that refuses ``n``,
    gives fewer choices, or the same long text in all choices of the probe, is asked singly from then on, beginning with
    what is missing. A group that the budget cannot cover goes singly too.

    Parameters
    ----------
    flights : list of Flight
        Of requests that differ in their generation only.
    sender : Sender
    known : dict
        By model and address, whether ``n`` works there; None while the probe is out. Shared by all groups.
    singly : callable
        ``singly(flight)`` gives a flight its own request, if anybody waits for it.
    keep : callable
        ``await keep(flight, outcome, sent, details)`` stores an outcome and lands the flight.
    look : callable
        ``look(flights)`` lands those whose call the store holds by now, and returns the rest.
    """

    def __init__(
        self, flights: list[Flight], sender: Sender, known: dict, singly: Callable, keep: Callable, look: Callable
    ):
        self.flights, self._sender, self._known = flights, sender, known
        self._singly, self._keep, self._look = singly, keep, look
        for flight in flights:
            flight.trip = self

    def wanted(self) -> bool:
        return any(flight.waiting for flight in self.flights)

    def look(self) -> bool | None:
        self.flights = self._look(self.flights)
        return None if self.flights else True

    async def fly(self) -> None:
        """Send and store, or let every flight go singly."""
        request = self.flights[0].request
        way = await self._sender.way(request)
        model, known = way.address, self._known
        if way.target is None or not known.get(model, True) or not transport.takes_n(request, way.target):
            return self._part(self.flights)
        known.setdefault(model, None)
        works = None
        try:
            works = await self._send(request, way)
        finally:
            if works is not None:
                known[model] = works and known[model] is not False
            elif known[model] is None:
                del known[model]  # nothing was learned: the next group is the probe

    async def _send(self, request: Request, way: Way) -> bool | None:
        """Whether ``n`` works; None if that remains open."""
        sent, n = {}, 0

        async def send():
            nonlocal sent, n
            gone = [flight for flight in self.flights if not flight.wanted()]
            self.flights = [flight for flight in self.flights if flight.wanted()]
            self._part(gone)
            sent, n = dict(way.sent), len(self.flights)  # some may also have been found in the store
            return await self._sender.complete(request, way, sent, n)

        try:
            outcome, details = await self._sender.send_until_done(request, way, send, self, len(self.flights))
        except BudgetReached:  # for the group; for some of them it may do
            self._part(self.flights)
            return None
        if details is None:
            return None
        if isinstance(outcome, Failure):
            if n > 1 and outcome.reason == "error" and not outcome.retry and not outcome.setup:
                self._owe(self.flights, details["requests"], [outcome.paid] if outcome.paid else ())
                self._part(self.flights)  # in whatever words ``n`` was refused, a single request will tell
                return False
            outcomes = [outcome, *[replace(outcome, paid=None)] * (len(self.flights) - 1)]
        else:
            outcomes = outcome if n > 1 else [outcome]
        if n > 1:
            sent["n"] = n
        texts = [one.text for one in outcomes if not isinstance(one, Failure) and not is_hiccup(one)]
        differ, known = len(set(texts)) > 1, self._known[way.address]
        equal = len(texts) > 1 and not differ and len(texts[0] or "") >= EQUAL and not known
        good, missing, vain = [], self.flights[len(outcomes) :], []
        for flight, one in zip(self.flights, outcomes, strict=False):
            if n > 1 and not isinstance(one, Failure) and (is_hiccup(one) or equal and good):
                missing.append(flight)
                vain.append(one)
            else:
                good.append((flight, one))
        works = False if equal or len(outcomes) < n else True if differ else None
        if works is False:
            self._known[way.address] = False  # before those that are missing are asked for
        if good and vain:
            good[0] = good[0][0], add_paid(good[0][1], vain)
        elif vain:
            self._owe(missing, details["requests"], vain)
        self._part(missing)
        for place, (flight, one) in enumerate(good):
            # The request counts once, so that sums over calls are right.
            await self._keep(flight, one, dict(sent), details if not place else details | {"requests": 0})
        return works

    def _owe(self, flights: list[Flight], requests: int, paid: Iterable) -> None:
        """Let what the group has cost in vain count with one of those that go on singly."""
        if first := next((flight for flight in flights if flight.wanted()), None):
            first.requests, first.paid = first.requests + requests, (*first.paid, *paid)

    def _part(self, flights: list[Flight]) -> None:
        for flight in flights:
            self._singly(flight)
