"""Where in a context the memories labelled as the entry's memory_domain stand, and how a layout moves them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import nan
from pathlib import Path

import numpy as np
import pandas as pd

from .columns import check_table
from .data import Entry
from .errors import InputError, choice
from .intervals import clustered_mean
from .labels import labelled, labels_of
from .missing import in_words
from .taxonomy import Taxonomy, load_taxonomy
from .tree import Node

_COLUMNS = (
    "entry_id", "structure", "structurer", "memory_domain", "n_memories", "n_labelled", "first_position",
    "mean_position", "first_moved", "mean_moved", "remark",
)  # fmt: skip


def gold_positions(
    nodes: Mapping[str, Sequence[Node]],
    entries: Sequence[Entry],
    source: str | Path = "reference",
    taxonomy: str | Taxonomy = "life11",
    baseline: str = "flat",
    structurer: str = "embedding",
) -> pd.DataFrame:
    """Relative position, in each layout, of the memories whose label belongs to the entry's memory_domain.

    A memory counts as one of the entry's memory_domain if its primary reference label is among the domains that the
    taxonomy accepts for that label of the benchmark. Which memory leaks is not known: these are the memories that
    could. A layout by domain gathers them and moves them up or down with their heading, so an effect of where they
    stand may pass for an effect of the layout.

    Parameters
    ----------
    nodes : mapping of structure to one Node per entry
        As made by ``structure_all``, in the order of `entries`.
    entries : sequence of Entry
    source : str or Path
        Reference labels: see ``labels.load_labels``. Only entries that are labelled in full have positions.
    taxonomy : str or Taxonomy
        The labels' own; it says which domains belong to a memory_domain.
    baseline : str
        The structure against which memories are moved; nobody sorts it.
    structurer : str
        Who sorted the others; stamped on their rows.

    Returns
    -------
    DataFrame
        One row per structure × entry, also of the entries without positions: ``n_memories`` in the context,
        ``n_labelled`` of them with such a label, ``first_position`` and ``mean_position`` of these in [0, 1] (0: first
        memory of the context, 1: last; over all memories the mean is 0.5), ``first_moved`` and ``mean_moved``: position
        minus the baseline's, in [-1, 1] (above 0: moved towards the end); ``remark`` says why there is no position.

    Raises
    ------
    InputError
        If the lengths differ, or the taxonomy does not know a memory_domain; as ``labels.labelled``.
    """
    taxonomy, entries = load_taxonomy(taxonomy), list(entries)
    for name, layouts in nodes.items():
        if len(layouts) != len(entries):
            raise InputError(f"{name} has {len(layouts)} layouts for {len(entries)} entries; expected one per entry.")
    if wrong := {entry.memory_domain for entry in entries if entry.memory_domain} - set(taxonomy.accepted):
        raise choice("memory_domain", sorted(wrong)[0], taxonomy.accepted)
    known = {id(entry) for entry in labelled(entries, source)}
    rows = []
    for place, entry in enumerate(entries):
        wanted, why = set(), ""
        if not entry.memory_domain:
            why = "no memory_domain"
        elif id(entry) not in known:
            why = "not labelled in full"
        else:
            accepted = taxonomy.accepted[entry.memory_domain]
            labels = labels_of([memory.text for memory in entry.memories], source)
            wanted = {m.id for m, (domain, _) in zip(entry.memories, labels, strict=True) if domain in accepted}
            why = "" if wanted else "no memory is labelled as the memory_domain"
        found = {name: _positions(layouts[place], wanted, why) for name, layouts in nodes.items()}
        before = found.get(baseline, {"first_position": nan, "mean_position": nan})
        for name, row in found.items():
            moved = {
                f"{what}_moved": row[f"{what}_position"] - before[f"{what}_position"] for what in ("first", "mean")
            }
            named = {
                "entry_id": entry.entry_id,
                "structure": name,
                "structurer": "" if name == baseline else structurer,
            }
            named["memory_domain"] = entry.memory_domain
            rows.append(named | row | moved)
    order = {name: place for place, name in enumerate(nodes)}
    table = pd.DataFrame(rows, columns=list(_COLUMNS))
    return table.sort_values("structure", key=lambda names: names.map(order), kind="stable").reset_index(drop=True)


def _positions(node: Node, wanted: set[str], why: str) -> dict:
    shown = [memory.id for memory in node.all_memories()]
    at = [place for place, name in enumerate(shown) if name in wanted]
    if not why and not at:
        why = "the layout drops every such memory"
    if not why and len(shown) == 1:
        why = "one memory in the context has no position"
    scaled = np.array(at) / (len(shown) - 1) if not why else np.array([nan])
    positions = {"first_position": float(scaled.min()), "mean_position": float(scaled.mean())}
    return {"n_memories": len(shown), "n_labelled": len(at)} | positions | {"remark": why}


def position_shifts(positions: pd.DataFrame) -> pd.DataFrame:
    """How far each layout moves the labelled memories, over entries.

    Parameters
    ----------
    positions : DataFrame
        As made by ``gold_positions``.

    Returns
    -------
    DataFrame
        One row per structure: means over the ``n_entries`` with a position of ``first_position`` and ``mean_position``,
        in [0, 1], of ``first_moved``, and of ``mean_moved`` with ``moved_low``, ``moved_high`` (95 %, t over entries,
        every entry weighing the same: the sampling weights of the labels are not used); ``n_up`` and ``n_down``:
        entries whose labelled memories stand nearer to the start or to the end than in the baseline; ``n_left_out``
        entries and the ``reasons``; ``interval``.

    Raises
    ------
    InputError
        A table without those columns.
    """
    check_table(positions, "positions")
    if lacking := [name for name in _COLUMNS if name not in positions]:
        raise InputError(f"positions lack the columns {lacking}; expected a table of gold_positions.")
    rows = []
    for (structure, structurer), group in positions.groupby(["structure", "structurer"], sort=False):
        found = group[group["mean_position"].notna()]
        moved = found["mean_moved"].dropna()
        low, high = clustered_mean(moved.to_numpy(dtype=float), np.arange(len(moved))) if len(moved) > 1 else (nan, nan)
        why = "one entry" if len(moved) == 1 else "no variation" if len(moved) else "no entry with both positions"
        rows.append(
            {"structure": structure, "structurer": structurer, "n_entries": len(found)}
            | {name: found[name].mean() for name in ("first_position", "mean_position", "first_moved")}
            | {"mean_moved": moved.mean(), "moved_low": low, "moved_high": high}
            | {"interval": "t over entries" if low == low else f"not available: {why}"}
            | {"n_up": int((moved < -1e-9).sum()), "n_down": int((moved > 1e-9).sum())}
            | {
                "n_left_out": len(group) - len(found),
                "reasons": in_words(Counter(group["remark"][group["remark"] != ""])),
            }
        )
    return pd.DataFrame(rows, columns=[
        "structure", "structurer", "n_entries", "first_position", "mean_position", "first_moved", "mean_moved",
        "moved_low", "moved_high", "interval", "n_up", "n_down", "n_left_out", "reasons",
    ])  # fmt: skip
