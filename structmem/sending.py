"""Sends requests to models: where to, how many at once, how often again, at what cost, and what is kept of it."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from . import transport
from .budget import Budget
from .calls import Call, Request, model_label
from .errors import StructmemError
from .failures import Failure
from .functions import call_function
from .limits import LONGEST_WAIT_S, Limit, Shut
from .masking import Masker
from .responses import add_paid
from .transport import Reply, Target

FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.5, 60.0
LOOK_AGAIN_S = 1.0  # after a longer wait the store is asked once more
LONGEST_ERROR = 800  # characters of an error text that are kept
EMPTY_AGAIN = 2  # how often an empty reply is asked for again; each one is paid for
UNREACHED_AGAIN = 3  # how often a model that never answered is tried again when nobody is there
SORTERS_AT_ONCE = 2  # Python functions that sort compute here: more threads would only get in each other's way
CUT = ("length", "max_tokens")  # finish reasons of a truncated reply

_LEAVES = {
    "answer": "the query and the memories", "judge": "the query, the memories and the answer", "embedding": "the texts",
}  # fmt: skip
_SYSTEM_MATTERS = frozenset({"judge", "classifier", "proposer"})  # roles whose system message decides what is sent


class Trip:
    """A request, as far as sending it must know who waits for it; `task` is the task that makes it."""

    task: asyncio.Task | None = None
    sending = False  # once it is, it is paid for
    dropped = False  # nobody waited any more before it was sent
    ending = False  # the client is closing: nothing is sent again
    paid: tuple = ()  # replies that were paid for in vain, and asked for again
    requests = 0  # made for it before it went its own way

    def wanted(self) -> bool:
        """Whether anybody still waits."""
        return True

    def look(self) -> object | None:
        """What the store holds by now that makes the request needless; None if nothing."""
        return None


class Flight(Trip):
    """A call under way: its request, and a future for each who waits; `trip` is the request that brings the reply."""

    def __init__(self, key: str, request: Request, accept: Callable | None, look: Callable):
        self.key, self.request, self.accept, self._look = key, request, accept, look
        self.waiting: list[asyncio.Future] = []
        self.trip: Trip = self
        self.landed: tuple | BaseException | None = None

    def wanted(self) -> bool:
        return bool(self.waiting)

    def look(self) -> Call | None:
        return self._look(self.key)

    def join(self) -> asyncio.Future:
        """One more waits, until `leave`."""
        waiter = asyncio.get_running_loop().create_future()
        self.waiting.append(waiter)
        return waiter

    def leave(self, waiter: asyncio.Future) -> None:
        """One waits no longer; what nobody waits for and is not paid for yet is not sent."""
        self.waiting.remove(waiter)
        trip = self.trip
        if self.landed is None and not trip.sending and not trip.wanted():
            trip.dropped = True
            trip.task.cancel()

    async def arrive(self, waiter: asyncio.Future) -> tuple:
        """Wait for ``(Call, parsed, accept)``."""
        await waiter
        if isinstance(self.landed, BaseException):
            raise self.landed
        return self.landed

    def land(self, landed: tuple | BaseException) -> None:
        """Tell those who wait what became of it."""
        self.landed = landed
        for waiter in self.waiting:
            if not waiter.done():
                waiter.cancel() if isinstance(landed, asyncio.CancelledError) else waiter.set_result(None)


@dataclass(frozen=True)
class Way:
    """How a model is reached: its target (None: a Python function), what is sent besides messages, and the limit."""

    target: Target | None
    address: tuple
    sent: dict
    limit: Limit


class Sender:
    """The way to the models, for one client.

    Parameters
    ----------
    at_once : mapping
        Requests to one model at once, for ``judge`` and ``other``; a local model has the slots of its server.
    budget : Budget
    timeout_s : float
        Seconds until a request counts as failed.
    max_retries : int
        Requests after the first.
    announce : callable or None
        Told once per model and role which texts leave this machine.
    masker : Masker
    """

    def __init__(
        self,
        at_once: Mapping,
        budget: Budget,
        timeout_s: float,
        max_retries: int,
        announce: Callable | None,
        masker: Masker,
    ):
        self.budget, self.masker, self.timeout_s, self.max_retries = budget, masker, timeout_s, max_retries
        self.counts = {
            "made": 0, "stored": 0, "requests": 0, "retries": 0, "rejected": 0, "no_response": 0, "by_role": {},
        }  # fmt: skip
        self.plan_hash: str | None = None  # the analysis plan in force, stamped on every call that is made
        self._announce = announce
        self._at_once = at_once
        self._limits: dict[tuple, Limit] = {}
        self._ways: dict[tuple, Way] = {}
        self._targets: dict[tuple, asyncio.Future] = {}
        self._reached: set[str] = set()
        self._announced: set[tuple[str, str]] = set()

    # -- where to -----------------------------------------------------------------------------------------------------

    async def way(self, request: Request) -> Way:
        """How the request's model is reached, found once per setting; before anything is paid.

        Raises
        ------
        SetupError, InputError
            If the model cannot be called like this.
        """
        messages = request.messages
        shared = messages[0]["content"] if request.role in _SYSTEM_MATTERS else None
        shown = (request.model, request.role, repr(request.params), repr(request.options), str(shared))
        way = self._ways.get(shown)
        # A message that may be blank has its letters looked at each time.
        if way is not None and all(_starts_visibly(message["content"]) for message in messages):
            return way
        self.masker.learn(request.options)  # before the first request that could bring a secret back
        address, target = await self._target(request)
        sent = transport.sent_parameters(request)
        if target is not None and "response_format" in sent and not transport.takes_schema(request, target):
            del sent["response_format"]  # asked for, and not sent: the prompt says the shape in words too
        if target is not None and target.slots:
            # Its address is found anew each time: a server may have died, and a new one listens elsewhere.
            limit = self._limits.setdefault((target.address["api_base"],), Limit(target.slots))
            return Way(target, address, sent, limit)
        group = "judge" if request.role == "judge" else "other"
        most = self._at_once[group]
        if target is None and request.role == "structurer":
            group, most = "structurer", min(most, SORTERS_AT_ONCE)
        limit = self._limits.setdefault((address, group), Limit(most))
        if len(self._ways) > 1000:
            self._ways.clear()
        way = self._ways[shown] = Way(target, address, sent, limit)
        return way

    async def _target(self, request: Request) -> tuple[tuple, Target | None]:
        """Where the request goes, checked once per model and address; None for a Python function."""
        if callable(request.model):
            return (model_label(request.model),), None
        lane = transport.lane(request)
        asked = (str(request.options.get(name)) for name in ("api_base", "base_url", "api_key"))
        address = (request.model, lane, *asked)
        found = self._targets.get(address) if lane is None else None
        if found is None:
            found = self._targets[address] = asyncio.ensure_future(transport.find_target(request))
            found.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            target = await asyncio.shield(found)
        except StructmemError:
            self._targets.pop(address, None)  # the user may set the key and try again
            raise
        if target.leaves_machine and self._announce and (target.label, request.role) not in self._announced:
            self._announced.add((target.label, request.role))
            texts = _LEAVES.get(request.role, "the memories")
            self._announce(
                f"structmem: {texts} leave this machine (role {request.role}) for {target.label!r} at {target.route}."
            )
        return address, target

    # -- sending ------------------------------------------------------------------------------------------------------

    async def complete(self, request: Request, way: Way, sent: dict, n: int = 1) -> Reply | list[Reply] | Failure:
        """One request for one reply, or for several."""
        target = way.target
        if target is None:
            return await call_function(request, self.timeout_s)
        if target.slots:
            target = (await self._target(request))[1]
        if n == 1:
            return await transport.complete(request, target, sent, self.timeout_s)
        return await transport.complete(request, target, sent, self.timeout_s, n=n)

    async def send_until_done(self, request: Request, way: Way, send: Callable, trip: Trip, n: int = 1) -> tuple:
        """The one retry layer: send until there is an answer, or none is to be hoped for.

        Parameters
        ----------
        send : callable
            ``await send()`` makes one request.
        n : int
            Replies that are paid for.

        Returns
        -------
        (Reply, list of Reply or Failure; dict), or (what `Trip.look` found, None)
            The last outcome, and when and how it was got: `called_at` and `latency_s` are those of the last request.
        """
        limit, requests, empty, looked = way.limit, 0, 0, transport.clock()
        free, refused_at = 0, None  # refusals that do not count, and when the first one came
        reserved = await self.budget.reserve(request, n)
        try:
            while True:
                outcome = None
                try:
                    place = await limit.enter()
                except Shut as shut:
                    outcome = Failure(
                        "error", f"Not sent: the provider refuses every request, for {shut.seconds:.0f} s more as far "
                        "as is known. Run again later; finished calls are kept.",
                    )  # fmt: skip
                    return self._with_paid(outcome, trip, timestamp(), None, requests)
                try:
                    # It may have waited here for hours, while another process did the same work.
                    if transport.clock() - looked > LOOK_AGAIN_S:
                        if (stored := trip.look()) is not None:
                            return stored, None
                        looked = transport.clock()
                    trip.sending, requests = True, requests + 1
                    called_at, started = timestamp(), transport.clock()
                    outcome = await send()
                    latency = round(transport.clock() - started, 4)
                finally:
                    refused = None
                    if isinstance(outcome, Failure):
                        # A server of one's own that has too much to do may say nothing, and be late.
                        refused = outcome.throttled or outcome.reason == "timeout" or None
                        if outcome.wait_s and way.target is not None and not way.target.slots:
                            limit.hold(outcome.wait_s)
                    elif outcome is not None:
                        refused = False
                    limit.leave(place, refused)
                self.counts["requests"] += 1
                failed = isinstance(outcome, Failure)
                paid = outcome if isinstance(outcome, list) else (outcome.paid,) if failed else (outcome,)
                for reply in paid:
                    if isinstance(reply, Reply):  # also one that is asked for again
                        self.budget.charge(request, reply, reserved / n)
                if failed and outcome.throttled and self.max_retries > 1:
                    refused_at = refused_at or started
                    free = free + 1 if transport.clock() - refused_at < LONGEST_WAIT_S else 0
                empty += not failed and not isinstance(outcome, list) and is_hiccup(outcome)
                wait = self._wait(outcome, requests, free, empty, request)
                enough = failed or self.budget.covers()
                if wait is None or trip.ending or not trip.wanted() or not enough:
                    return self._with_paid(outcome, trip, called_at, latency, requests)
                trip.sending = False
                trip.paid += tuple(reply for reply in paid if reply is not None)
                self.counts["retries"] += 1
                await asyncio.sleep(wait)
        finally:
            self.budget.release(reserved)

    def _with_paid(self, outcome, trip: Trip, called_at: str, latency_s: float | None, requests: int) -> tuple:
        """What `send_until_done` returns: replies that were paid for in vain count with what came of them."""
        if trip.paid and isinstance(outcome, list):
            outcome = [add_paid(outcome[0], trip.paid), *outcome[1:]]
        elif trip.paid and isinstance(outcome, Failure):
            outcome = replace(outcome, paid=add_paid(outcome.paid or Reply(None), trip.paid))
        elif trip.paid:
            outcome = add_paid(outcome, trip.paid)
        return outcome, {"called_at": called_at, "latency_s": latency_s, "requests": requests + trip.requests}

    def _wait(
        self, outcome: Reply | list | Failure, requests: int, free: int, empty: int, request: Request
    ) -> float | None:
        """Seconds until the next request; None if there shall be none."""
        if isinstance(outcome, Failure):
            again, most = outcome.retry, self.max_retries
            if outcome.setup and model_label(request.model) not in self._reached:
                most = min(most, UNREACHED_AGAIN)
        else:
            # An empty reply is mostly a hiccup; one that thinking has used up would come out the same.
            hiccup = isinstance(outcome, Reply) and is_hiccup(outcome)
            again, most = hiccup and empty <= EMPTY_AGAIN and not callable(request.model), self.max_retries
        if not again or requests - free > most:
            return None
        told = getattr(outcome, "wait_s", None)
        backoff = min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2 ** min(requests - 1, 30)) * random.uniform(0.5, 1.5)
        # Some say 0, or a date by a clock that is late, again and again.
        if told is None or (requests > 1 and told < backoff):
            return backoff
        # Spread those who were told the same time, but never come early.
        return told + random.uniform(0, 0.25 + told / 10) if told <= LONGEST_WAIT_S else None

    # -- what is kept -------------------------------------------------------------------------------------------------

    def beyond_reach(self, request: Request, outcome: object) -> bool:
        """Whether no call of this model can succeed as things are set."""
        return isinstance(outcome, Failure) and outcome.setup and model_label(request.model) not in self._reached

    def record(self, key: str, request: Request, outcome: Reply | Failure, sent: dict, details: Mapping) -> Call:
        """The `Call` for an outcome, with every secret hidden."""
        requests, details = details["requests"], {**details, "plan_hash": self.plan_hash}
        error, label = outcome.detail, model_label(request.model)
        self.count("made", request.role)
        if error is not None:
            self.counts["no_response"] += 1
            # Cut only here: of a key that is cut first, the rest would not be known again.
            error = self.masker.mask(self._hide(error))[:LONGEST_ERROR]
            error += f" (after {requests} requests)" if requests > 1 else ""
        if isinstance(outcome, Failure):
            paid = outcome.paid or Reply(None)
            return Call(
                key, "no_response", outcome.reason, model=label, role=request.role, generation=request.generation,
                replicate=request.replicate, attempt=request.attempt, params_sent=sent, error=error,
                input_tokens=paid.input_tokens, output_tokens=paid.output_tokens, cached_tokens=paid.cached_tokens,
                reasoning_tokens=paid.reasoning_tokens, cost_usd=self.budget.cost(request, paid), **details,
            )  # fmt: skip
        self._reached.add(label)
        hide = self._hide
        return Call(
            key, "no_response" if outcome.reason else "ok", outcome.reason, hide(outcome.text), hide(outcome.reasoning),
            hide(outcome.finish_reason), outcome.finish_reason in CUT, label, hide(outcome.served_model),
            hide(outcome.provider), outcome.input_tokens, outcome.output_tokens, outcome.cached_tokens,
            outcome.reasoning_tokens, self.budget.cost(request, outcome), params_sent=sent, error=error,
            role=request.role, generation=request.generation, replicate=request.replicate, attempt=request.attempt,
            **details,
        )  # fmt: skip

    def _hide(self, text: object) -> str | None:
        if text is None:
            return None
        text = str(text)
        if not text.isascii():  # half a surrogate pair (a cut emoji) can be neither stored nor sent on
            text = text.encode("utf-8", "replace").decode()
        return self.masker.hide(text)

    def count(self, what: str, role: str) -> None:
        self.counts[what] += 1
        by_role = self.counts["by_role"]
        if role not in by_role:
            by_role[role] = {"made": 0, "stored": 0}
        by_role[role][what] += 1


def is_hiccup(reply: Reply) -> bool:
    """Whether a reply is empty for no reason that it tells."""
    return reply.reason == "empty" and reply.finish_reason not in CUT


def _starts_visibly(content: object) -> bool:
    return isinstance(content, str) and content[0].isprintable() and content[0] != " "


_second: tuple[int, str] = (0, "")


def timestamp() -> str:
    """The time as ISO 8601 in UTC, to the millisecond; the seconds are written once for all calls within one."""
    global _second
    now = time.time()
    second = int(now)
    if _second[0] != second:
        _second = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
    return f"{_second[1]}.{int((now - second) * 1000):03d}+00:00"
