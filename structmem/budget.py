"""What calls cost, and a hard limit that is checked before each one."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping

from .calls import Request, model_label
from .errors import BudgetReached, InputError
from .prices import Price, estimate_tokens, price

CAUTION = 1.25  # our count of tokens is rough, so a reservation is taken a quarter higher
UNLIMITED_TOKENS = 2048  # what a reply may take if the request sets no limit and none was seen yet


class Budget:
    """Money of one client: spent, reserved for calls under way, and allowed.

    Parameters
    ----------
    limit_usd : float or None
        US dollars; None for no limit.
    allow_unpriced : bool
        With a limit, let models pass whose price is not known.
    prices : mapping or None
        Own prices, see `prices.price`.
    """

    def __init__(self, limit_usd: float | None, allow_unpriced: bool, prices: Mapping | None):
        if limit_usd is not None and not (isinstance(limit_usd, int | float) and 0 <= limit_usd < math.inf):
            raise InputError(f"budget_usd must be a number of dollars from 0, got {limit_usd!r}.")
        if not isinstance(prices, Mapping | None):
            raise InputError(f"prices must be a dict of (dollars per input token, per output token), got {prices!r}.")
        self.limit_usd, self.allow_unpriced, self.prices = limit_usd, allow_unpriced, dict(prices or {})
        self.spent_usd, self._reserved, self._open = 0.0, 0.0, 0
        self._waiting: list[asyncio.Future] = []
        self._longest: dict[tuple, int] = {}
        for name in self.prices:
            price(name, self.prices)  # refuse a wrong one now

    def check(self, models: Iterable) -> None:
        """Refuse models whose price is not known, where a limit is to be kept; nothing is asked.

        Raises
        ------
        InputError
            With the models' names.
        """
        if self.limit_usd is None or self.allow_unpriced:
            return
        unknown = sorted({model for model in models if isinstance(model, str) and price(model, self.prices) is None})
        if unknown:
            raise InputError(
                f"No price is known for {unknown}, so a budget cannot be kept and nothing was asked: give prices="
                f"{{{unknown[0]!r}: (dollars per input token, per output token)}}, or allow_unpriced=True (their calls "
                "then count with what the provider says they cost, if it does)."
            )

    async def reserve(self, request: Request, n: int = 1) -> float:
        """Set the likely cost of a request for `n` replies aside, until it is given to `release`.

        Where it would fit but for what is set aside for others, it waits until they have shown what they cost.

        Raises
        ------
        BudgetReached
            If what is spent and asked for exceeds the limit, or the price is unknown.
        """
        if self.limit_usd is None or callable(request.model):
            estimate = 0.0
        else:
            estimate = self._estimate(request, n)
        while self.limit_usd is not None and self.spent_usd + self._reserved + estimate > self.limit_usd:
            if self.spent_usd + estimate > self.limit_usd or not self._open:
                raise BudgetReached(
                    f"The budget of ${self.limit_usd:.2f} is reached: ${self.spent_usd:.4f} spent, and the next "
                    f"{request.role} call of {model_label(request.model)!r} may cost ${estimate:.4f}. Finished calls "
                    "are kept; raise the budget and run again to go on."
                )
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter
        self._reserved += estimate
        self._open += estimate > 0
        return estimate

    def release(self, reserved: float) -> None:
        """Give back what `reserve` has set aside."""
        self._open -= reserved > 0
        self._reserved = self._reserved - reserved if self._open else 0.0  # sums of fractions leave a rest
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    def covers(self) -> bool:
        """Whether every request under way can be sent once more, after one that was paid for in vain."""
        return self.limit_usd is None or self.spent_usd + self._reserved <= self.limit_usd

    def _estimate(self, request: Request, n: int) -> float:
        known = price(request.model, self.prices)
        if known is None:
            if self.allow_unpriced:
                return 0.0
            raise BudgetReached(
                f"No price is known for {request.model!r}, so a budget cannot be kept: give one, "
                f"prices={{{request.model!r}: (dollars per input token, per output token)}}, or allow_unpriced=True."
            )
        texts = [m["content"] if isinstance(m["content"], str) else str(m["content"]) for m in request.messages]
        limit = request.params.get("max_tokens") or request.params.get("max_completion_tokens")
        limit = limit or max(UNLIMITED_TOKENS, self._longest.get((request.model, request.role), 0))
        return known.cost(math.ceil(estimate_tokens(texts) * CAUTION), n * limit)

    def cost(self, request: Request, reply) -> float | None:
        """Dollars of one reply: by own prices, else as the provider or litellm says; None if nobody knows."""
        own = self._own(request)
        if own is not None:
            return own.cost(reply.input_tokens, reply.output_tokens, reply.cached_tokens)
        return reply.cost_usd

    def _own(self, request: Request) -> Price | None:
        name = request.model if isinstance(request.model, str) else getattr(request.model, "model_id", None)
        return price(request.model, self.prices) if name in self.prices else None

    def charge(self, request: Request, reply, reserved: float) -> None:
        """Add the cost of a reply; where it is unknown but was estimated, the estimate, so that the limit holds."""
        cost = self.cost(request, reply)
        self.spent_usd += cost if cost is not None else reserved
        tokens, length = (request.model, request.role), reply.output_tokens or 0
        if length > self._longest.get(tokens, 0):
            self._longest[tokens] = length
