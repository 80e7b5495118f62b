"""structmem: the same memories, laid out by life domain, and what that changes."""

from __future__ import annotations

from importlib import import_module

__version__ = "0.1.0"

# Public names in pipeline order, each imported from its module on first use: ``import structmem`` stays quick.
_PUBLIC = {
    "load_entries": "data", "Entry": "data", "Memory": "data", "FAILURE_TYPES": "data",
    "load_taxonomy": "taxonomy", "Taxonomy": "taxonomy",
    "structure": "structures", "astructure": "structures", "structure_all": "describe", "STRUCTURES": "structures",
    "Node": "tree", "render": "renderers", "RENDERERS": "renderers", "parse_context": "renderers",
    "build_messages": "messages",
    "Client": "llm", "check_connection": "connection",
    "judge": "judges", "ajudge": "judges", "Verdict": "judges",
    "plan": "experiment", "run": "experiment", "arun": "experiment",
    "read_results": "results", "write_results": "results", "merge_results": "results", "save_results": "results",
    "arm_summary": "stats", "failure_rate": "stats", "echo_rate": "stats", "rates": "reading",
    "paired_differences": "stats", "reductions": "stats", "cautious_reading": "reading",
    "completeness": "missing", "verdicts_to_read": "reading",
    "fr_at_k": "curves", "threshold_sensitivity": "curves", "score_distribution": "curves", "averages": "averaging",
    "on_common_entries": "overlap", "subgroup_differences": "subgroups",
    "pooled_differences": "estimands", "leave_one_model_out": "estimands", "heterogeneity": "estimands",
    "logistic_effects": "pooled", "harmed_entries": "comparisons",
    "noninferiority": "margins", "dominance": "dominating", "conditional_effects": "interactions",
    "power_of_test": "power", "entries_needed": "power", "power_curve": "power", "simulated_power": "power",
    "noise_floor": "noise",
    "load_published": "published", "load_published_aggregates": "published", "published_reductions": "published",
    "load_published_discordance": "published", "load_published_persistbench": "published",
    "published_recomputed": "published", "published_drift": "published",
    "published_differences": "published_contrasts", "published_leave_one_out": "published_contrasts",
    "published_contrast": "published_contrasts", "published_conditional_effects": "published_contrasts",
    "published_interactions": "published_contrasts", "published_noninferiority": "published_contrasts",
    "published_dominance": "published_contrasts", "published_reading": "published_words",
    "load_plan": "analysis_plan", "stamped": "stamping", "adjusted": "multiplicity",
    "rejudge": "rejudging", "judge_agreement": "agreement", "agreement_by_arm": "agreement",
    "krippendorff_alpha": "reliability", "audit_export": "audit", "audit_import": "audit",
    "judge_accuracy": "correction", "corrected_rate": "correction", "heading_share": "headings",
    "judge_reading": "judge_words",
    "misjudged": "planted_judges", "fill_in": "planted_judges",
    "simulated_results": "simulate", "planted_entries": "simulate", "simulated_scores": "planted",
    "planted_truth": "simulate",
    "SideBySide": "describe", "show_entry": "describe", "domain_fill": "describe", "layout_shapes": "describe",
    "tokens_added": "describe", "retrieval_kept": "describe", "hits": "describe", "stamp": "describe",
    "check_parameters": "notebooks", "show": "tables", "to_latex": "latex", "save_table": "latex",
}  # fmt: skip

__all__ = list(_PUBLIC)


def __getattr__(name: str):
    if name in _PUBLIC:
        return getattr(import_module(f".{_PUBLIC[name]}", __name__), name)
    if name == "figures":
        return import_module(".figures", __name__)
    raise AttributeError(f"structmem has no public name {name!r}; public names: {', '.join(_PUBLIC)}.")


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
