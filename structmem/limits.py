"""How many requests to one model are open at once: fewer while it throttles, more again as it recovers."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque

LONGEST_WAIT_S = 600  # a provider that asks for more, or refuses everything for longer, is given up on for now
SHUT_S = 60  # until one is tried again that has refused everything
ROUND = 24  # outcomes by which a share of refusals is judged, at least
CLEAN_ROUNDS = 8  # rounds without a refusal before more are tried than were taken
NOISE = 0.25  # a larger share of refusals is always taken for a limit


class Shut(Exception):
    """The provider refuses everything for longer than a run can wait; `seconds` are left."""

    def __init__(self, seconds: float):
        super().__init__(seconds)
        self.seconds = seconds


class Limit:
    """Lets requests through in the order in which they come, and learns how many at once are taken.

    It starts at `most`. Each refusal takes one place away, down to an eighth per round of requests under way, so that
    what is left is what the provider took. After `CLEAN_ROUNDS` without a refusal one place more is tried, then two,
    four and so on, up to `most`. Where the share of refusals is small and does not fall with the number of requests,
    that number is not its cause: such a share is borne, and the question asked again later.

    Parameters
    ----------
    most : int
        Requests at once at most.
    """

    def __init__(self, most: int):
        self.most = self.allowed = most
        self.open = 0
        self._waiting: deque[asyncio.Future] = deque()
        self._until, self._shut_until, self._timer = 0.0, 0.0, None
        self._refusing_since: float | None = None
        self._round, self._level = 0, most
        self._taken = self._refused = 0
        self._clean_rounds_due, self._step = 0, 1
        self._cut: tuple[int, float] | None = None  # the round before, if it was cut: its level and share of refusals
        self._borne, self._borne_rounds = 0.0, 0

    async def enter(self) -> int:
        """Wait for a place; give the number of the round to `leave`.

        Raises
        ------
        Shut
            If the provider asks to wait for more than `LONGEST_WAIT_S`, or has taken nothing for that long.
        """
        if self.open < self.allowed and not self._waiting and not self._until and not self._shut_until:
            self.open += 1
            return self._round
        if self._shut_until and (left := self._shut_until - time.monotonic()) > 0:
            raise Shut(left)
        self._shut_until = 0.0
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        self._let_in()
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and not waiter.exception():  # let in at the same moment
                self.open -= 1
                self._let_in()
            raise
        return self._round

    def leave(self, entered: int, refused: bool | None = None) -> None:
        """Give the place back.

        Parameters
        ----------
        entered : int
            What `enter` gave.
        refused : bool, optional
            Whether the provider throttled; None if what came back says nothing about it.
        """
        self.open -= 1
        if refused:
            self._watch()
        elif refused is not None:
            self._refusing_since = None
        if refused is not None and entered == self._round:
            self._count(refused)
        if self._waiting:
            self._let_in()

    def hold(self, seconds: float) -> None:
        """Let nobody in for some time, as the provider has asked.

        Where refusals do not depend on how many are sent, this would only slow the others down: then those wait who
        were refused, and nobody else.
        """
        if seconds > LONGEST_WAIT_S:
            self._shut(seconds)
            return
        if self._borne:
            return
        # A little later than told, so that several programs do not come back in the same moment.
        self._until = max(self._until, time.monotonic() + seconds * random.uniform(1.01, 1.1))
        self._let_in()

    def _watch(self) -> None:
        now = time.monotonic()
        if self._refusing_since is None:
            self._refusing_since = now
        elif now - self._refusing_since > LONGEST_WAIT_S:
            self._refusing_since = None
            self._shut(SHUT_S)

    def _shut(self, seconds: float) -> None:
        seconds = min(seconds, LONGEST_WAIT_S)  # one who says a day, or a nonsense, may mean one request
        self._shut_until = time.monotonic() + seconds
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_exception(Shut(seconds))

    def _let_in(self) -> None:
        if self._until and (left := self._until - time.monotonic()) > 0:
            if self._timer is None and self._waiting:
                self._timer = asyncio.get_running_loop().call_later(left + 0.001, self._time_is_up)
            return
        self._until = 0.0
        while self._waiting and self.open < self.allowed:
            waiter = self._waiting.popleft()
            if not waiter.done():
                self.open += 1
                waiter.set_result(None)

    def _time_is_up(self) -> None:
        self._timer = None
        self._let_in()

    def _count(self, refused: bool) -> None:
        if refused:
            if not self._refused:  # with little to do, fewer are open than are allowed
                self._level = min(self.allowed, self.open + 1)
            self._refused += 1
            if self._refused > self._borne * self._level:
                self.allowed = max(1, self._level // 8, self._level - self._refused)
        else:
            self._taken += 1
        counted = self._taken + self._refused
        if counted >= (max(ROUND, self._level) if self._refused else self.allowed):
            # Refusals come back at once, and what is taken later: those still open are mostly being answered.
            self._end_round(self._refused / (counted + self.open))
            if self._refused:
                self._round += 1  # those under way were sent before it was known
            self._taken = self._refused = 0

    def _end_round(self, share: float) -> None:
        if share <= self._borne:
            self._cut = None
            if share:
                self.allowed = max(self.allowed, self._level)
                self._borne_rounds += 1
                if self._borne_rounds == 2 * CLEAN_ROUNDS:
                    self._borne = 0.0
            if self._clean_rounds_due:
                self._clean_rounds_due -= 1
            elif self.allowed < self.most:
                self.allowed = min(self.most, self.allowed + self._step)
                self._step *= 2
            return
        if self._cut and share <= NOISE and self._cut[1] / 2 <= share and self._cut[1] <= NOISE:
            # Fewer at once, and refused as often.
            self.allowed, self._borne, self._borne_rounds = self._cut[0], 2 * max(share, self._cut[1]), 0
            self._cut = None
            return
        self._cut, self._borne = (self._level, share), 0.0
        self._clean_rounds_due, self._step = CLEAN_ROUNDS, 1
