"""Prices of models in dollars per token: the user's own, else litellm's local map, read without importing litellm."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from .errors import InputError

_MAP = "model_prices_and_context_window_backup.json"
_OWN_SERVERS = frozenset({"hosted_vllm", "local", "lm_studio", "llamafile", "openai_like", "custom_openai", "vllm"})


@dataclass(frozen=True)
class Price:
    """US dollars per token; ``cached_input`` for prompt tokens that the provider read from its cache."""

    input: float
    output: float
    cached_input: float | None = None

    def cost(
        self, input_tokens: int | None, output_tokens: int | None, cached_tokens: int | None = None
    ) -> float | None:
        """Dollars for one call; None where a count is unknown."""
        if input_tokens is None or output_tokens is None:
            return None
        cached = min(cached_tokens or 0, input_tokens)
        rate = self.input if self.cached_input is None else self.cached_input
        return (input_tokens - cached) * self.input + cached * rate + output_tokens * self.output


def price(model: object, prices: Mapping | None = None) -> Price | None:
    """The price of a model; None where it is not known.

    Parameters
    ----------
    model : str or callable
        Local models cost nothing; a callable's price is unknown unless `prices` has its ``model_id``.
    prices : mapping, optional
        Own prices: ``{"model id": (dollars per input token, dollars per output token)}``.

    Raises
    ------
    InputError
        If an own price is not two numbers from 0.
    """
    name = model if isinstance(model, str) else getattr(model, "model_id", None)
    if prices and name in prices:
        pair = tuple(prices[name]) if isinstance(prices[name], list | tuple) else ()
        if len(pair) not in (2, 3) or not all(isinstance(p, int | float) and math.isfinite(p) and p >= 0 for p in pair):
            raise InputError(
                f"The price of {name!r} must be (dollars per input token, per output token), got {prices[name]!r}."
            )
        return Price(*pair)
    if not isinstance(model, str):
        return None
    if model.startswith("local/"):
        return Price(0.0, 0.0)
    route, _, rest = model.rpartition("/")
    entry = _price_map().get(model)
    if entry is None and route and route.split("/")[0] not in _OWN_SERVERS:
        # "openai/gpt-4o" stands as "gpt-4o" in the map; the same name at another provider has another price
        first, _, name = model.partition("/")
        entry = _price_map().get(name)
        if entry is not None and entry.get("litellm_provider") != first:
            entry = None
    if not entry or entry.get("input_cost_per_token") is None:
        return None
    return Price(
        float(entry["input_cost_per_token"]),
        float(entry.get("output_cost_per_token") or 0.0),
        entry.get("cache_read_input_token_cost"),
    )


@lru_cache(maxsize=1)
def _price_map() -> dict:
    spec = find_spec("litellm")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / _MAP
        if path.is_file():
            return json.loads(path.read_text(encoding="utf-8"))
    return {}


def estimate_tokens(texts: Iterable[str]) -> int:
    """A rough number of tokens: one for four bytes, which fits English and is near for other scripts."""
    return sum(math.ceil(len(text.encode("utf-8", "replace")) / 4) for text in texts)
