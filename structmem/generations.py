"""Several generations in one request, where the provider gives as many replies as it is asked for."""

from __future__ import annotations

from collections.abc import Callable

from . import transport
from .calls import Request
from .failures import Failure
from .sending import Flight, Sender, Trip, Way, is_hiccup


class Together(Trip):
    """One request for several generations, where the provider gives as many choices as it is asked for.

    The first group of a model is the probe; while it is out, other groups go singly. A model that refuses ``n``, or
    gives fewer choices or equal ones, is asked singly from then on, beginning with what is missing.

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

        outcome, details = await self._sender.send_until_done(request, way, send, self, len(self.flights))
        if details is None:
            return None
        if isinstance(outcome, Failure):
            if n > 1 and outcome.reason == "error" and not outcome.retry and not outcome.setup:
                self._part(self.flights)  # in whatever words ``n`` was refused, a single request will tell
                return False
            outcomes = [outcome] * len(self.flights)
        else:
            outcomes = outcome if n > 1 else [outcome]
        if n > 1:
            sent["n"] = n
        good, missing, texts, equal = [], self.flights[len(outcomes) :], set(), False
        for flight, one in zip(self.flights, outcomes, strict=False):
            text = getattr(one, "text", None)
            equal = equal or text in texts
            if n > 1 and not isinstance(one, Failure) and (text in texts or is_hiccup(one)):
                missing.append(flight)
            else:
                good.append((flight, one))
                texts |= {text} if text else set()
        works = False if equal or len(outcomes) < n else True if len(texts) == n > 1 else None
        if works is False:
            self._known[way.address] = False  # before those that are missing are asked for
        self._part(missing)
        for place, (flight, one) in enumerate(good):
            # The request counts once, so that sums over calls are right.
            await self._keep(flight, one, dict(sent), details if not place else details | {"requests": 0})
        return works

    def _part(self, flights: list[Flight]) -> None:
        for flight in flights:
            self._singly(flight)
