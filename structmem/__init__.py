"""structmem: the same memories, laid out by life domain, and what that changes."""

from __future__ import annotations

from importlib import import_module

__version__ = "0.1.0"

# Public names in pipeline order, each imported from its module on first use: ``import structmem`` stays quick.
_PUBLIC = {
    "load_entries": "data", "Entry": "data", "Memory": "data", "FAILURE_TYPES": "data",
    "load_memories": "memoryfiles",
    "load_taxonomy": "taxonomy", "Taxonomy": "taxonomy",
    "structure": "structures", "astructure": "structures", "structure_all": "describe", "STRUCTURES": "structures",
    "add_memory": "additions", "aadd_memory": "additions", "MemoryBook": "memorybook",
    "Node": "tree", "render": "renderers", "RENDERERS": "renderers", "parse_context": "renderers",
    "build_messages": "messages",
    "Client": "llm", "check_connection": "connection",
    "judge": "judges", "ajudge": "judges", "Verdict": "judges",
    "plan": "experiment", "run": "experiment", "arun": "experiment",
    "run_each": "variants", "vary": "variants", "run_settings": "variants", "sort_each": "sorting",
    "sorting_shapes": "sorting", "sorting_hits": "sorting", "domain_shares": "sorting",
    "adjusted_rand": "partition_agreement",
    "sorting_agreement": "partition_agreement", "agreement_by_difference": "partition_agreement",
    "agreement_of_all": "partition_agreement", "reduction_variance": "variance", "variance_reading": "variance",
    "agreement_reading": "partition_agreement", "effects_by_setting": "setting_effects",
    "setting_reading": "setting_effects",
    "read_results": "results", "write_results": "results", "merge_results": "results", "save_results": "results",
    "import_results": "importing", "write_checkpoint": "checkpoints",
    "arm_summary": "stats", "failure_rate": "stats", "echo_rate": "stats", "rates": "reading",
    "paired_differences": "stats", "reductions": "stats", "cautious_reading": "reading",
    "completeness": "missing", "verdicts_to_read": "reading",
    "fr_at_k": "curves", "threshold_sensitivity": "curves", "score_distribution": "curves", "averages": "averaging",
    "on_common_entries": "overlap", "subgroup_differences": "subgroups",
    "pooled_differences": "estimands", "leave_one_model_out": "estimands", "heterogeneity": "estimands",
    "logistic_effects": "pooled", "harmed_entries": "comparisons",
    "noninferiority": "margins", "dominance": "dominating", "conditional_effects": "interactions",
    "three_factor_interactions": "three_factors", "layout_effects": "adjusting", "gold_positions": "label_positions",
    "position_shifts": "label_positions", "factor_reading": "factor_words",
    "power_of_test": "power", "entries_needed": "power", "power_curve": "power", "simulated_power": "power",
    "noise_floor": "noise", "ladder": "control_contrasts", "ladder_reading": "ladder_words",
    "load_published": "published", "load_published_aggregates": "published", "published_reductions": "published",
    "load_published_discordance": "published", "load_published_persistbench": "published",
    "published_recomputed": "published", "published_drift": "published",
    "published_differences": "published_contrasts", "published_leave_one_out": "published_contrasts",
    "published_contrast": "published_contrasts", "published_conditional_effects": "published_contrasts",
    "published_interactions": "published_contrasts", "published_noninferiority": "published_contrasts",
    "published_dominance": "published_contrasts", "published_reading": "published_words",
    "ordinal_differences": "ordinal", "ordinal_reading": "ordinal_words",
    "sycophancy_reading": "ordinal_words",
    "rag_variants": "ragcurves", "rag_points": "ragcurves", "memories_kept": "ragcurves",
    "matched_differences": "matched", "matched_reading": "matched_words",
    "load_plan": "analysis_plan", "stamped": "stamping", "adjusted": "multiplicity",
    "rejudge": "rejudging", "judge_agreement": "agreement", "agreement_by_arm": "agreement",
    "krippendorff_alpha": "reliability", "audit_export": "audit", "audit_import": "audit",
    "judge_accuracy": "correction", "corrected_rate": "correction", "heading_share": "headings",
    "judge_reading": "judge_words",
    "load_labels": "labels", "labelled": "labels", "label_sheet": "labels",
    "labelling_agreement": "labelling", "labelling_by_domain": "labelling",
    "assignments": "assigned", "read_partitions": "assigned",
    "memory_ambiguity": "ambiguity", "most_ambiguous": "ambiguity", "rater_agreement": "ambiguity",
    "distinct_raters": "ambiguity", "domain_agreement": "ambiguity",
    "structurer_accuracy": "sorting_accuracy", "accuracy_differences": "sorting_accuracy",
    "domain_errors": "sorting_accuracy", "confusion": "sorting_accuracy", "confusion_grid": "sorting_accuracy",
    "gold_ambiguity": "entry_ambiguity", "entry_reductions": "entry_ambiguity", "ambiguity_effect": "entry_ambiguity",
    "ambiguity_split": "entry_ambiguity", "ambiguity_reading": "ambiguity_words",
    "misjudged": "planted_judges", "fill_in": "planted_judges",
    "simulated_results": "simulate", "planted_entries": "simulate", "simulated_scores": "planted",
    "planted_truth": "simulate",
    "domain_flows": "flows", "flow_counts": "flows", "flow_grid": "flows", "flow_reading": "flows",
    "token_costs": "costs", "measured_costs": "costs", "paid_back": "payback", "break_even": "payback",
    "spent_by_queries": "payback", "price_table": "payback", "prefix_kept": "prefixes", "cache_prices": "prefixes",
    "wall_times": "timing", "cost_reading": "cost_words",
    "SideBySide": "describe", "show_entry": "describe", "domain_fill": "describe", "layout_shapes": "describe",
    "tokens_added": "describe", "retrieval_kept": "describe", "hits": "describe", "stamp": "describe",
    "build_report": "reporting", "write_entry_browser": "entry_browser",
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
