"""Sends requests to models: where to, how many at once, how often again, at what cost, and what is kept of it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from . import transport
from .budget import Budget
from .calls import Call, Request, model_label
from .errors import StructmemError
from .failures import Failure
from .functions import call_function
from .masking import Masker
from .transport import Reply, Target

FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.5, 60.0
LONGEST_WAIT_S = 600  # a provider that asks for more is given up on; the run can be resumed
LONGEST_ERROR = 800  # characters of an error text that are kept
EMPTY_AGAIN = 2  # how often an empty reply is asked for again; each one is paid for
CUT = ("length", "max_tokens")  # finish reasons of a truncated reply

_LEAVES = {
    "answer": "the query and the memories", "judge": "the query, the memories and the answer", "embedding": "the texts",
}  # fmt: skip


@dataclass
class Flight:
    """A call under way, and how many wait for it; `look` finds it in the store, where another process may put it."""

    key: str = ""
    look: Callable | None = None
    waiters: int = 0
    sending: bool = False
    task: asyncio.Task | None = None


class Sender:
    """The way to the models, for one client.

    Parameters
    ----------
    limits : mapping
        Calls at once, for ``judge`` and ``other``; a local model has its own limit, the slots of its server.
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
        limits: Mapping,
        budget: Budget,
        timeout_s: float,
        max_retries: int,
        announce: Callable | None,
        masker: Masker,
    ):
        self.budget, self.masker, self.timeout_s, self.max_retries = budget, masker, timeout_s, max_retries
        self.counts = {"made": 0, "stored": 0, "retries": 0, "rejected": 0, "no_response": 0, "by_role": {}}
        self._announce = announce
        self._limits = {name: asyncio.Semaphore(number) for name, number in limits.items()}
        self._targets: dict[tuple, asyncio.Future] = {}
        self._reached: set[str] = set()
        self._learned: set[str] = set()
        self._announced: set[tuple[str, str]] = set()

    async def deliver(self, request: Request, flight: Flight) -> tuple[Call, bool]:
        """Make one call; the second item says that no call of this model can succeed as things are set."""
        target, sent = await self.target(request), transport.sent_parameters(request)
        if "response_format" in sent and target is not None and not transport.takes_schema(request, target):
            del sent["response_format"]  # asked for, and not sent: the prompt says the shape in words too

        async def send():
            if target is None:
                return await call_function(request, self.timeout_s)
            # A local server may have died since: asked for its address before each request, it is started anew.
            here = await self.target(request) if target.slots else target
            return await transport.complete(request, here, sent, self.timeout_s)

        outcome, details = await self.send_until_done(request, target, send, flight)
        if isinstance(outcome, Call):
            return outcome, False
        call = self.record(flight.key, request, outcome, sent, details)
        return call, isinstance(outcome, Failure) and outcome.setup and call.model not in self._reached

    async def send_until_done(self, request: Request, target: Target | None, send: Callable, flight=None) -> tuple:
        """The one retry layer: send until there is an answer, or none is to be hoped for.

        Returns
        -------
        (Reply, list of Reply, Failure or Call; dict)
            The last outcome, and when and how it was got; a Call if it is in the store by now.
        """
        flight = flight or Flight(waiters=1)
        called_at, requests = datetime.now(UTC).isoformat(timespec="milliseconds"), 0
        with self.budget.reserve(request) as reserved:
            while True:
                async with self._limit(request, target):
                    # It may have waited here for hours, while another process did the same work.
                    if flight.look and (stored := flight.look()) is not None:
                        return stored, {}
                    flight.sending, requests, started = True, requests + 1, transport.clock()
                    outcome = await send()
                    latency = round(transport.clock() - started, 4)
                for reply in outcome if isinstance(outcome, list) else [outcome]:
                    if isinstance(reply, Reply):  # also one that is asked for again: it is paid for
                        self.budget.charge(request, reply, reserved)
                wait = self._wait(outcome, requests, request)
                if wait is None or not flight.waiters:
                    return outcome, {"called_at": called_at, "latency_s": latency, "requests": requests}
                flight.sending = False
                self.counts["retries"] += 1
                await asyncio.sleep(wait)

    def _wait(self, outcome: Reply | list | Failure, requests: int, request: Request) -> float | None:
        """Seconds until the next request; None if there shall be none."""
        if isinstance(outcome, Failure):
            again = outcome.retry
        else:
            # An empty reply is mostly a hiccup; one that thinking has used up would come out the same.
            again = isinstance(outcome, Reply) and outcome.reason == "empty" and outcome.finish_reason not in CUT
            again = again and requests <= EMPTY_AGAIN and not callable(request.model)
        if not again or requests > self.max_retries:
            return None
        told = getattr(outcome, "wait_s", None)
        if told is None:
            return min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2 ** (requests - 1)) * random.uniform(0.5, 1.5)
        # Spread those who were told the same time, but never come early.
        return told + random.uniform(0, 0.25 + told / 10) if told <= LONGEST_WAIT_S else None

    def _limit(self, request: Request, target: Target | None) -> asyncio.Semaphore:
        if target is not None and target.slots:
            return self._limits.setdefault(target.address["api_base"], asyncio.Semaphore(target.slots))
        return self._limits["judge" if request.role == "judge" else "other"]

    async def target(self, request: Request) -> Target | None:
        """Where the request goes, checked once per model and address; None for a Python function."""
        shown = repr(request.options)
        if shown not in self._learned:  # before the first request that could bring a secret back
            self._learned.add(shown)
            self.masker.learn(request.options)
        if callable(request.model):
            return None
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
        return target

    def record(self, key: str, request: Request, outcome: Reply | Failure, sent: dict, details: Mapping) -> Call:
        """The `Call` for an outcome, with every secret hidden."""
        self.count("made", request.role)
        requests = details["requests"]

        def hide(text: object) -> str | None:
            # Half a surrogate pair (a cut emoji) can be neither stored nor sent on.
            return None if text is None else self.masker.hide(str(text).encode("utf-8", "replace").decode())

        error = getattr(outcome, "detail", None)
        if error is not None:
            self.counts["no_response"] += 1
            # Cut only here: of a key that is cut first, the rest would not be known again.
            error = self.masker.mask(hide(error))[:LONGEST_ERROR]
            error += f" (after {requests} requests)" if requests > 1 else ""
        fields = {
            "model": model_label(request.model), "role": request.role, "generation": request.generation,
            "replicate": request.replicate, "attempt": request.attempt, "called_at": details["called_at"],
            "latency_s": details["latency_s"], "params_sent": sent, "error": error, "status_reason": outcome.reason,
        }  # fmt: skip
        if isinstance(outcome, Failure):
            return Call(key, "no_response", **fields)
        self._reached.add(fields["model"])
        return Call(
            key, "no_response" if outcome.reason else "ok", **fields, text=hide(outcome.text),
            reasoning=hide(outcome.reasoning), finish_reason=hide(outcome.finish_reason),
            truncated=outcome.finish_reason in CUT, served_model=hide(outcome.served_model),
            provider=hide(outcome.provider),
            input_tokens=outcome.input_tokens, output_tokens=outcome.output_tokens,
            cached_tokens=outcome.cached_tokens, reasoning_tokens=outcome.reasoning_tokens,
            cost_usd=self.budget.cost(request, outcome),
        )  # fmt: skip

    def count(self, what: str, role: str) -> None:
        self.counts[what] += 1
        self.counts["by_role"].setdefault(role, {"made": 0, "stored": 0})[what] += 1
