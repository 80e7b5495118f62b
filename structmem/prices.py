"""Prices of models and what prompts they keep: the user's own, else litellm's local map, without importing litellm."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from .errors import InputError

_MAP = "model_prices_and_context_window_backup.json"
_OWN_SERVERS = frozenset({"hosted_vllm", "local", "lm_studio", "llamafile", "openai_like", "custom_openai", "vllm"})
_MARKS_CLAUDE = frozenset({"anthropic", "bedrock", "vertex_ai", "azure_ai", "openrouter"})
LONGEST_MINIMUM = 4096  # tokens; of all Claude models


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
    entry = _entry(model)
    if entry.get("input_cost_per_token") is None:
        return None
    return Price(
        float(entry["input_cost_per_token"]),
        float(entry.get("output_cost_per_token") or 0.0),
        entry.get("cache_read_input_token_cost"),
    )


def cache_minimum(model: str) -> int | None:
    """The shortest prompt, in tokens, whose beginning a provider keeps when asked to; None if it need not be asked.

    Claude models keep the beginning of a prompt only when it is marked, whoever sells them; others do it by themselves
    or not at all. Models that litellm's map does not know to take the mark are not asked.
    """
    route, _, rest = model.rpartition("/")
    name = re.search(r"claude[\w.-]*", rest)
    if name is None or (route.split("/")[0] or "anthropic") not in _MARKS_CLAUDE:
        return None
    entry = _entry(model) or price_map().get(name[0].replace(".", "-")) or {}
    minimum = entry.get("prompt_cache_min_tokens", LONGEST_MINIMUM)
    return int(minimum) if entry.get("supports_prompt_caching") else None


def _entry(model: str) -> Mapping:
    """What litellm's map says of a model; empty where it says nothing."""
    first, slash, name = model.partition("/")
    entry = price_map().get(model)
    if entry is None and slash and first not in _OWN_SERVERS:
        # "openai/gpt-4o" stands as "gpt-4o" in the map; the same name at another provider has another price
        entry = price_map().get(name) or {}
        seller = entry.get("litellm_provider", "")
        if seller != first and not seller.startswith((f"{first}_", f"{first}-")):  # "bedrock_converse" is bedrock
            entry = None
    return entry or {}


@lru_cache(maxsize=1)
def price_map() -> dict:
    """What litellm's own file says of its models, read without importing litellm; empty where it is not installed."""
    spec = find_spec("litellm")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / _MAP
        if path.is_file():
            return json.loads(path.read_text(encoding="utf-8"))
    return {}


def estimate_tokens(texts: Iterable[str]) -> int:
    """A rough number of tokens: one for four bytes, which fits English and is near for other scripts."""
    return sum(math.ceil(len(text.encode("utf-8", "replace")) / 4) for text in texts)
