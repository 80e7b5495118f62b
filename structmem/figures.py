"""Tables in, axes out: one function per figure in the house style; no statistic is computed here."""

from __future__ import annotations

from .curve_figures import failure_by_k, power_by_entries
from .forest import paired_forest
from .grids import score_bars, structure_by_defence
from .house import Saved, save, style
from .layout_figures import domain_fill, tokens_added
from .rate_figures import leakage_by_model, published_rates, rates_by_model, sycophancy_ceiling
from .tradeoff import leakage_vs_beneficial

__all__ = [
    "Saved", "domain_fill", "failure_by_k", "leakage_by_model", "leakage_vs_beneficial", "paired_forest",
    "power_by_entries", "published_rates", "rates_by_model", "save", "score_bars", "structure_by_defence", "style",
    "sycophancy_ceiling", "tokens_added",
]  # fmt: skip
