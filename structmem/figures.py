"""Tables in, axes out: one function per figure in the house style; no statistic is computed here."""

from __future__ import annotations

from .ambiguity_figures import confusion_matrix, misclassified_by_domain, reduction_by_ambiguity
from .cost_figures import prefix_kept, spent_by_queries
from .curve_figures import failure_by_k, power_by_entries
from .factor_figures import factor_forest, factor_tradeoff, labelled_positions
from .flow_figures import domain_flows, flow_counts
from .forest import paired_forest
from .grids import score_bars, structure_by_defence
from .house import Saved, save, style
from .ladder_figures import control_ladder
from .layout_figures import domain_fill, tokens_added
from .matched_figures import matched_tradeoff
from .rate_figures import leakage_by_model, published_rates, rates_by_model, sycophancy_ceiling
from .structurer_figures import sorter_agreement, taxonomy_panels, variance_parts
from .tradeoff import leakage_vs_beneficial

__all__ = [
    "Saved", "confusion_matrix", "control_ladder", "domain_fill", "domain_flows", "factor_forest", "factor_tradeoff",
    "failure_by_k", "flow_counts", "labelled_positions", "leakage_by_model", "leakage_vs_beneficial",
    "matched_tradeoff", "misclassified_by_domain", "paired_forest", "power_by_entries", "prefix_kept",
    "published_rates", "rates_by_model", "reduction_by_ambiguity", "save", "score_bars", "sorter_agreement",
    "spent_by_queries", "structure_by_defence", "style", "sycophancy_ceiling", "taxonomy_panels", "tokens_added",
    "variance_parts",
]  # fmt: skip
