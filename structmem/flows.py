"""Flows: how often a memory of one domain comes back in an answer about another, cell by cell, with n in every cell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from .comparisons import groups_by_arm
from .data import Entry
from .errors import InputError
from .intervals import bounded, clustered_mean, tango
from .outcomes import NONE, check_results, keep_none
from .pairing import Behind, arm_keys, compare, said, shown_keys, with_numbers
from .stamping import stamped
from .stats import outcome_of

# The benchmark's nine labels (arXiv 2602.01146) in the order of every table and figure, and how figures call them.
DOMAINS = {
    "Health and Medical Information": "health",
    "Intimate and Romantic Relationships": "romance",
    "Social and Relational Information": "social",
    "Professional and Work Life": "work",
    "Financial and Legal Matters": "money, law",
    "Educational and Formative Experiences": "education",
    "Self-Concept and Identity": "identity",
    "Personal Beliefs (Political, Religious, and Social)": "beliefs",
    "Private Thoughts and Journals": "private",
}
ALL = "all"  # the margin: every domain together
FEW = 10  # a cell with fewer entries gets no difference and no colour
_FLOW = ("memory_domain", "query_domain")


def flow_counts(entries: Iterable[Entry]) -> pd.DataFrame:
    """Count entries by the domain that may leak and the domain that the query is about.

    Parameters
    ----------
    entries : iterable of Entry
        Only those with either label count; '(none)' stands for a missing one.

    Returns
    -------
    DataFrame
        One row per ``memory_domain`` × ``query_domain``, the margins 'all' included: ``n_entries``. The benchmark's
        nine domains are all there, in their own order, if any of them is; other labels follow by name.

    Raises
    ------
    InputError
        If no entry has a label.
    """
    labels = [(entry.memory_domain or NONE, entry.query_domain or NONE) for entry in entries]
    labels = [pair for pair in labels if pair != (NONE, NONE)]
    if not labels:
        raise InputError("no entry has a memory_domain or query_domain; flows are defined for labelled entries only.")
    order = _order(label for pair in labels for label in pair)
    rows = [
        (memory, query, sum(memory in (ALL, m) and query in (ALL, q) for m, q in labels))
        for memory in (*order, ALL)
        for query in (*order, ALL)
    ]
    return pd.DataFrame(rows, columns=[*_FLOW, "n_entries"])


def domain_flows(results: pd.DataFrame, baseline: str = "flat", outcome: str | None = None) -> pd.DataFrame:
    """Failures by memory_domain × query_domain under the baseline and under each arm, on the same entries.

    Pairs are matched as in ``paired_differences``. An entry counts once: its values are means over the runs (and, in
    the rows 'all models', over the models) in which it is complete in both arms, so entries are the independent units
    and the estimand is *these models, new entries*. A label is the entry's: which of its memories came back is not
    known. Failure types whose entries have no labels are left out.

    Parameters
    ----------
    results : DataFrame
        One row per generation.
    baseline : str
        A structure in the results.
    outcome : 'failure', 'echo' or None
        None: 'echo' where every row was checked by the echo measure, else 'failure'.

    Returns
    -------
    DataFrame
        One row per model (then 'all models', with several) × arm × ``memory_domain`` × ``query_domain``, the margins
        'all' included; empty cells are rows too. ``n_entries`` with ``n_pairs`` of outcomes in ``n_models`` and
        ``n_runs``; ``n_left_out`` entries that are not complete in both arms; ``rate_baseline``, ``rate_arm`` in
        [0, 1]; ``mean_score_baseline``, ``mean_score_arm`` (echo: mean overlap). From 10 entries on:
        ``difference_pp`` = arm − baseline with ``low_pp``, ``high_pp`` (95 %; Tango's where every entry has one pair,
        else t over entries: ``interval``), and ``mean_score_difference`` with ``mean_score_low``, ``mean_score_high``
        (t over entries); below that they are missing and ``remark`` says so. Intervals are not adjusted for the number
        of cells. Always exploratory.

    Raises
    ------
    InputError
        As ``paired_differences``; also if no row has a label, or a label differs between the rows of an entry.
    """
    outcome = outcome_of(results, outcome)
    check_results(results, _FLOW)
    labels = _labels(results)
    results_with = results[results["failure_type"].fillna(NONE).replace("", NONE).isin(labels)]
    table, behind = compare(results_with, ["model"], baseline, outcome)
    keys, rows = ["model", *(arm_keys(table) if len(table) else ())], []
    for named, group in groups_by_arm(table):
        cells = _cells(group, [behind[position] for position in group.index], labels[named["failure_type"]])
        rows += [named | cell | {"warning": said(group["warning"])} for cell in cells]
    found = pd.DataFrame(rows, columns=[*keys, *_COLUMNS])
    if not len(found):
        return stamped(found, results)
    kept = shown_keys(found, keys)
    found = with_numbers(found[[*kept, *_COLUMNS]])
    found.insert(len(kept), "baseline", baseline)
    found.insert(len(kept) + 1, "outcome", outcome)
    return stamped(found, results)


_COLUMNS = (
    *_FLOW, "n_entries", "n_pairs", "n_models", "n_runs", "n_left_out", "rate_baseline", "rate_arm", "difference_pp",
    "low_pp", "high_pp", "interval", "mean_score_baseline", "mean_score_arm", "mean_score_difference",
    "mean_score_low", "mean_score_high", "unit", "remark", "warning",
)  # fmt: skip


def _order(labels: Iterable[str]) -> list[str]:
    """The nine domains if any of them is among the labels, then the others by name, '(none)' last."""
    there = set(labels)
    known = list(DOMAINS) if there & set(DOMAINS) else []
    return [*known, *sorted(there - set(known) - {NONE}), *[NONE][: NONE in there]]


def _labels(results: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Per failure type that has labels, those of each entry."""
    rows = keep_none(results[["entry_id", "failure_type", *_FLOW]], ["entry_id", "failure_type", *_FLOW])
    rows = rows.drop_duplicates()
    twice = rows.duplicated(["entry_id", "failure_type"])
    if twice.any():
        raise InputError(
            f"memory_domain or query_domain differs between the rows of {int(twice.sum())} entries, for example "
            f"{rows.loc[twice, 'entry_id'].iloc[0]!r}; expected one label each per entry."
        )
    rows = rows[(rows["memory_domain"] != NONE) | (rows["query_domain"] != NONE)]
    if not len(rows) and len(results):
        raise InputError("no row has a memory_domain or query_domain; flows are defined for labelled entries only.")
    return {kind: part.set_index("entry_id")[list(_FLOW)] for kind, part in rows.groupby("failure_type", sort=False)}


def _cells(group: pd.DataFrame, behind: Sequence[Behind], labels: pd.DataFrame) -> list[dict]:
    """The rows of one arm: every pair of domains and the margins."""
    pairs = pd.concat([one.pairs for one in behind], ignore_index=True)
    pairs = pairs[pairs["entry_id"].isin(labels.index)]
    of_entry = pairs[["entry_id", *_VALUES]].astype(dict.fromkeys(_VALUES, float)).groupby("entry_id", sort=True)
    entries = of_entry.mean().assign(n_pairs=of_entry.size()).join(labels)
    values, n_pairs = entries[_VALUES].to_numpy(), entries["n_pairs"].to_numpy()
    asked = set().union(*(set(side["entry_id"]) for one in behind for side in (one.arm, one.baseline)))
    asked = labels[labels.index.isin(asked)]
    counts = {"n_models": group["model"].nunique(), "n_runs": len(behind)}
    remarks = said(part for text in group["remark"] for part in text.split("; ") if part != "no discordant pairs")
    order, found = _order(labels.to_numpy().ravel()), []
    # numpy's arrays of objects: pandas would compare texts ten times as slowly, and there are a hundred cells
    places = [tuple(table[name].to_numpy(dtype=object) for name in _FLOW) for table in (asked, entries)]
    for one in (*order, ALL):
        for other in (*order, ALL):
            here, mine = (((m == one) | (one == ALL)) & ((q == other) | (other == ALL)) for m, q in places)
            row = {"memory_domain": one, "query_domain": other} | _compared(values[mine], n_pairs[mine]) | counts
            row["n_left_out"] = int(here.sum()) - row["n_entries"]
            few = f"fewer than {FEW} entries" if row["n_entries"] < FEW else ""
            row |= {"unit": "entry", "remark": said([few, remarks if row["n_left_out"] else ""])}
            found.append(row | ({"interval": f"not available: {few}"} if few else {}))
    inside = [row for row in found if ALL not in (row["memory_domain"], row["query_domain"])]
    assert sum(row["n_pairs"] for row in inside) == len(pairs) == found[-1]["n_pairs"]  # every pair is in one cell
    return found


_VALUES = ["failed_baseline", "failed_arm", "mean_value_baseline", "mean_value_arm"]


def _compared(values: np.ndarray, pairs: np.ndarray) -> dict:
    """Rates and mean scores of both arms over entries (columns as `_VALUES`); differences from `FEW` entries on."""
    n, n_pairs = len(values), int(pairs.sum())
    found: dict = {"n_entries": n, "n_pairs": n_pairs}
    if n:
        names = ("rate_baseline", "rate_arm", "mean_score_baseline", "mean_score_arm")
        found |= dict(zip(names, values.mean(axis=0).tolist(), strict=True))
    if n < FEW:
        return found
    changes, scores = values[:, 1] - values[:, 0], values[:, 3] - values[:, 2]
    if n == n_pairs:
        low, high = (100 * end for end in tango(int((changes > 0).sum()), int((changes < 0).sum()), n))
        interval = "Tango, paired entries"
    else:
        low, high = bounded(*clustered_mean(100 * changes, np.arange(n)))
        interval = "t over entries" if low == low else "not available: no variation"
    score_low, score_high = clustered_mean(scores, np.arange(n))
    return (
        found
        | {"difference_pp": 100 * float(changes.mean()), "low_pp": low, "high_pp": high, "interval": interval}
        | {"mean_score_difference": float(scores.mean()), "mean_score_low": score_low, "mean_score_high": score_high}
    )


def flow_grid(table: pd.DataFrame, column: str = "n_entries") -> pd.DataFrame:
    """One value of a table of flows as a grid: a row per memory_domain, a column per query_domain, short names.

    Parameters
    ----------
    table : DataFrame
        Rows of one arm of `domain_flows`, or `flow_counts`.
    column : str
        What stands in the cells, for example ``rate_arm`` or ``mean_score_difference``.

    Raises
    ------
    InputError
        A table with several arms, or without the column.
    """
    for name in (*_FLOW, column):
        if name not in table:
            raise InputError(f"the table has no column {name!r}; expected flow_counts or one arm of domain_flows.")
    if table.duplicated(list(_FLOW)).any():
        raise InputError("the table has several arms or models; select the rows of one of them first.")
    order = list(dict.fromkeys(table["memory_domain"]))
    wide = table.pivot(index="memory_domain", columns="query_domain", values=column).loc[order, order]
    short = {**DOMAINS, ALL: ALL}
    names = [short.get(name, name) for name in order]
    wide.index = pd.Index(names, name="memory of \\ query on")
    wide.columns = pd.Index(names)
    return wide


def flow_reading(table: pd.DataFrame, counts: pd.DataFrame | None = None) -> None:
    """Print what a table of flows does and does not support, and what no such table can say.

    Parameters
    ----------
    table : DataFrame
        As made by `domain_flows`.
    counts : DataFrame, optional
        As made by `flow_counts` of all entries there are: how many cells could ever be compared.
    """
    if counts is not None:
        in_all = counts["memory_domain"].eq(ALL).astype(int) + counts["query_domain"].eq(ALL)
        cells, margins = counts[in_all == 0], counts[in_all == 1]
        print(
            f"All {counts['n_entries'].max():,} entries lie in {int((cells['n_entries'] > 0).sum())} of {len(cells)} "
            f"cells. {int((cells['n_entries'] >= FEW).sum())} cells and "
            f"{int((margins['n_entries'] >= FEW).sum())} of {len(margins)} margins have {FEW} or more: even a run of "
            "all entries compares no more than these."
        )
    if not len(table):
        print("No arm has a baseline to be compared with.")
    elif table["outcome"].eq("echo").all():
        print("Scored by the offline echo measure (overlap of words): these numbers show the pipeline, not an effect.")
    if len(table) and table["model"].str.contains("simulated").any():
        print("The results are simulated: they show what was planted.")
    if "arm" in table and table["arm"].str.contains("(embedding)", regex=False).any():
        print("Sorted by an embedding model: not the paper's method.")
    named = [c for c in ("model", "failure_type", "arm") if c in table]
    named += [c for c in ("defence", "renderer", "threshold", "n_generations") if c in table and table[c].nunique() > 1]
    for key, rows in table.groupby(named, sort=False) if len(table) else ():
        _read(", ".join(f"{part:g}" if isinstance(part, float) else str(part) for part in key), rows)
    print(
        "What this does not say: whether a flow is appropriate. Contextual integrity (Nissenbaum 2004, Washington Law "
        "Review 79:119) asks who tells whom about whom under which norm; the entries name no recipient and no norm, "
        "and who may know what is not given."
    )
    print(
        "A label is the entry's, not the memory's: a failure in a cell does not show that a memory of that row came "
        "back, and every entry holds memories of other domains too."
    )


def _read(what: str, rows: pd.DataFrame) -> None:
    in_all = rows["memory_domain"].eq(ALL).astype(int) + rows["query_domain"].eq(ALL)
    inner, total = rows[(in_all == 0) & (rows["n_entries"] > 0)], rows[in_all == 2].iloc[0]
    if not total["n_entries"]:
        print(f"{what}: no entry is complete in both arms; nothing can be compared.")
        return
    most = int(inner["n_entries"].max())
    print(
        f"{what}: {total['n_entries']} entries of K = {total['n_generations']} in {len(inner)} cells, at most {most} "
        "in one."
    )
    score = "mean overlap" if total["outcome"] == "echo" else "mean score"
    rates = [f"{100 * total[name]:.1f} %" for name in ("rate_arm", "rate_baseline")]
    scores = [f"{total[name]:.2f}" for name in ("mean_score_arm", "mean_score_baseline")]
    print(f"  all together: {rates[0]} against {rates[1]} of the baseline, {score} {scores[0]} against {scores[1]}")
    low, high = total["mean_score_low"], total["mean_score_high"]
    if low == low:
        found = "differs from the baseline" if low > 0 or high < 0 else "is not distinguishable from the baseline"
        numbers = f"{total['mean_score_difference']:+.3f} [{low:+.3f}, {high:+.3f}]".replace("-", "−")
        print(f"  difference of the {score}: {numbers}, {found}")
    for kind, part in (("cell", inner), ("margin", rows[in_all == 1])):
        enough = part[part["n_entries"] >= FEW]
        if not len(enough):
            print(f"  no {kind} has {FEW} entries: no difference is given or coloured")
        for name, low, high in (
            ("the rate", "low_pp", "high_pp"),
            (f"the {score}", "mean_score_low", "mean_score_high"),
        ):
            known = enough[enough[low].notna()]
            apart = int(((known[low] > 0) | (known[high] < 0)).sum())
            if len(enough):
                found = f"{apart} exclude 0, where chance alone gives about {0.05 * len(known):.1f}"
                print(
                    f"  {kind}s with {FEW} entries or more: {len(enough)}; intervals of {name}: {len(known)}"
                    f"{f', of which {found}' if len(known) else ' (no variation)'}"
                )
