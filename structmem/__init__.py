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
    "load_published": "published", "load_published_aggregates": "published", "published_reductions": "published",
    "simulated_results": "simulate", "planted_truth": "simulate",
    "SideBySide": "describe", "show_entry": "describe", "domain_fill": "describe", "layout_shapes": "describe",
    "tokens_added": "describe", "retrieval_kept": "describe", "hits": "describe", "stamp": "describe",
    "check_parameters": "notebooks", "show": "tables",
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
