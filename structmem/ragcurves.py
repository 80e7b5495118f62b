"""RAG's trade-off: its settings over τ or k as curves of leakage against beneficial use, and what each arm keeps."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from math import inf, nan
from typing import NamedTuple

import numpy as np
import pandas as pd

from .data import FAILURE_TYPES
from .errors import InputError, choice
from .intervals import clustered_mean, wilson_clustered
from .outcomes import NONE, OF_STRUCTURE, check_results, display_structure, keep_none, sort_arms, unit_rows
from .pairing import said
from .stamping import stamped
from .stats import outcome_of

LEAKS, USES = "cross_domain", "beneficial_memory_usage"
SHORT = {LEAKS: "cross_domain", USES: "beneficial"}
MEASURES = {"rate": "failed", "mean": "mean_value"}
RAG = "rag"
ALL_KEPT, NONE_KEPT = "flat", "empty"  # what RAG lays out at τ = −1 and at k = 0
_OWN = ("structure", "structurer", "structurer_options", "taxonomy")


class Point(NamedTuple):
    """One arm under some settings: its outcomes by entry, for both failure types."""

    arm: str
    own: dict[str, str]  # structure, structurer, options and taxonomy
    setting: str  # 'τ 0.2', 'k 5'; empty for a structure
    tau: float | None
    top_k: int | None
    units: dict[str, pd.DataFrame]  # failure type → entries: failed, mean_value
    generations: dict[str, tuple[int, ...]]
    n_asked: dict[str, int]

    @property
    def structure(self) -> str:
        return self.own["structure"]

    @property
    def structurer(self) -> str:
        return self.own["structurer"]


class Curve(NamedTuple):
    """The settings of RAG along τ or k, from the one that keeps most memories to the one that keeps least."""

    name: str
    points: tuple[Point, ...]


def rag_variants(thresholds: Sequence[float] = (), top_ks: Sequence[int] = ()) -> dict[str, dict]:
    """Settings of ``rag`` for ``run_each``: by threshold τ (with any number of memories), then by k (without τ).

    Examples
    --------
    >>> list(rag_variants([0.1, 0.2], [5]))
    ['τ 0.1', 'τ 0.2', 'k 5']
    """
    settings = {f"τ {tau:g}": {"threshold": tau, "top_k": None} for tau in thresholds}
    settings |= {f"k {k:g}": {"threshold": None, "top_k": k} for k in top_ks}
    return {name: {"structurer_options": {RAG: options}} for name, options in settings.items()}


def rag_points(results: pd.DataFrame, outcome: str | None = None, measure: str | None = None) -> pd.DataFrame:
    """The points behind ``matched_differences``: RAG at each setting, curve by curve, and the structures beside it.

    Returns
    -------
    DataFrame
        One row per model × ``curve`` × ``setting`` of RAG (and of ``flat`` and ``empty`` where they are its ends), then
        one per other arm (``curve`` empty). For both failure types, as ``cross_domain_…`` and ``beneficial_…``:
        ``…_rate`` in [0, 1] (or ``…_mean``) with ``…_low``, ``…_high`` (95 %: Wilson, entries as clusters; for means t
        over entries), ``…_fitted`` (on the monotone curve, from entries complete at every setting), ``n_…`` complete
        entries; ``tau``, ``top_k``, ``outcome``, ``measure``, ``remark``.

    Raises
    ------
    InputError
        As ``matched_differences``.
    """
    outcome, contexts, measure, why = prepared(results, outcome, measure)
    rows = []
    for context, points in contexts:
        curves, on_curve = curves_of(points), set()
        for curve in curves:
            fitted = _fitted(curve, outcome, measure)
            on_curve |= set(map(id, curve.points))
            for place, point in enumerate(curve.points):
                at = {f"{SHORT[kind]}_fitted": values[place] for kind, values in fitted.items()}
                rows.append(context | {"curve": curve.name} | _described(point, measure) | at)
        rows += [
            context | {"curve": ""} | _described(point, measure)
            for point in points
            if id(point) not in on_curve and point.structure != RAG
        ]
    table = pd.DataFrame(rows).assign(outcome=outcome, measure=measure, remark=why)
    constant = [key for key in contexts[0][0] if key != "model" and table[key].nunique() == 1]
    return stamped(table.drop(columns=constant), results)


def memories_kept(results: pd.DataFrame) -> pd.DataFrame:
    """How many memories each arm shows of those an entry has; an arm that drops some changes the information.

    Returns
    -------
    DataFrame
        One row per failure type × model × arm (and structurer options where they differ): ``n_entries``,
        ``mean_memories`` and ``mean_shown`` per entry (over runs), ``kept_share`` = shown / memories over all entries,
        in [0, 1], ``empty_share`` of entries with memories of which nothing is shown, and ``information`` in words.
    """
    check_results(results, [])
    keys = [c for c in ("failure_type", "model", *_OWN, "defence") if c in results]
    if not {"n_shown", "n_memories"} <= set(results):
        return pd.DataFrame(columns=[*keys, "kept_share"])
    rows = keep_none(results, ["entry_id", *keys]).dropna(subset=["n_shown", "n_memories"])
    rows = rows.astype({"n_shown": float, "n_memories": float})
    entries = rows.groupby([*keys, "entry_id"], sort=False, as_index=False)[["n_shown", "n_memories"]].mean()
    found = []
    for key, group in entries.groupby(keys, sort=False):
        some = group[group["n_memories"] > 0]
        named = dict(zip(keys, key, strict=True))
        kept = some["n_shown"].sum() / some["n_memories"].sum() if len(some) else nan
        found.append(
            named
            | {"arm": display_structure(named["structure"], named.get("structurer")), "n_entries": len(group)}
            | {"mean_memories": group["n_memories"].mean(), "mean_shown": group["n_shown"].mean()}
            | {"kept_share": kept, "empty_share": (some["n_shown"] == 0).mean() if len(some) else nan}
            | {"information": "all memories shown" if kept == 1 else "changed: some are dropped" if kept < 1 else ""}
        )
    columns = [*keys, "arm", "n_entries", "mean_memories", "mean_shown", "kept_share", "empty_share", "information"]
    table = sort_arms(pd.DataFrame(found, columns=columns), keys)
    spare = [c for c in ("structurer_options", "taxonomy", "defence") if c in table and _same_within(table, c)]
    return table.drop(columns=[*spare, *(["structurer"] if "structurer" in table else [])])


def _same_within(table: pd.DataFrame, column: str) -> bool:
    within = [c for c in ("failure_type", "model", "structure", "structurer") if c in table]
    return not len(table) or bool((table.groupby(within, sort=False)[column].nunique() < 2).all())


# ------------------------------------------------------------------------------------------------- points and curves


def prepared(results: pd.DataFrame, outcome: str | None, measure: str | None):
    """The outcome, per context its points, the measure, and why it is not the rate where nobody asked for another."""
    outcome = outcome_of(results, outcome)
    if measure is not None and measure not in MEASURES:
        raise choice("measure", measure, MEASURES)
    units, arm = unit_rows(results, [], outcome)
    there = set(units["failure_type"])
    if lacking := [kind for kind in (LEAKS, USES) if kind not in there]:
        raise InputError(
            f"The results lack {lacking}: matching needs cross_domain and beneficial_memory_usage entries."
        )
    contexts = list(_contexts(units[units["failure_type"].isin((LEAKS, USES))], arm))
    curves = [curve for _, points in contexts for curve in curves_of(points)]
    if not curves:
        raise InputError(
            "The results hold no curve of RAG: run rag at two or more settings of threshold, or of top_k, all else "
            "being equal (run_each takes several), so that structures are never compared with it at one threshold."
        )
    why = ""
    if measure is None:
        rates = {kind: [[p.units[kind]["failed"].mean() for p in c.points] for c in curves] for kind in (LEAKS, USES)}
        flat = [kind for kind, of in rates.items() if all(max(one) - min(one) < 1e-12 for one in of)]
        measure = "mean" if flat else "rate"
        name = "echo rate" if outcome == "echo" else "failure rate"
        why = (
            f"RAG's {name} in {' and '.join(flat)} entries is the same at every setting: means are matched"
            if flat
            else ""
        )
    return outcome, contexts, measure, why


def _contexts(units: pd.DataFrame, arm: list[str]) -> Iterator[tuple[dict, list[Point]]]:
    shared = [column for column in arm if column not in (*OF_STRUCTURE, "threshold")]
    own = [column for column in _OWN if column in arm]
    for context, group in units.groupby(shared, sort=False):
        points = []
        for key, mine in group.groupby(own, sort=False):
            by_type = {kind: mine[mine["failure_type"] == kind] for kind in (LEAKS, USES)}
            if any(not len(part) for part in by_type.values()):
                continue
            points.append(_point(dict(zip(own, key, strict=True)), by_type))
        if points:
            yield dict(zip(shared, context, strict=True)), points


def _point(named: dict, by_type: dict[str, pd.DataFrame]) -> Point:
    named = dict.fromkeys(("structurer", *named), NONE) | named
    structure, structurer = named["structure"], named["structurer"]
    options, tau, top_k = named.get("structurer_options", NONE), None, None
    if structure == RAG and options != NONE:
        try:
            given = json.loads(options)
            tau, top_k = given.get("threshold"), given.get("top_k")
        except (ValueError, AttributeError):
            raise InputError(f"structurer_options of rag must be a JSON object, got {options!r:.80}.") from None
    words = [f"τ {tau:g}" if tau is not None else "", f"k {top_k:g}" if top_k is not None else ""]
    units = {
        # An entry's runs are averaged: it counts once.
        kind: part[part["complete"]].groupby("entry_id")[list(MEASURES.values())].mean().sort_index()
        for kind, part in by_type.items()
    }
    return Point(
        display_structure(structure, structurer), named, ", ".join(filter(None, words)), tau, top_k,
        units,
        {kind: tuple(sorted(map(int, part["expected"].unique()))) for kind, part in by_type.items()},
        {kind: part["entry_id"].nunique() for kind, part in by_type.items()},
    )  # fmt: skip


def curves_of(points: Sequence[Point]) -> list[Curve]:
    """The curves of RAG: settings that differ in τ alone, or in k alone, at least two, with what is at their ends."""
    rag = [point for point in points if point.structure == RAG]
    ends = {point.structure: point for point in points if point.structure in (ALL_KEPT, NONE_KEPT)}
    several = len({point.structurer for point in rag}) > 1
    found = []
    for name, other, moving, held in (("τ", "k", "tau", "top_k"), ("k", "τ", "top_k", "tau")):
        groups: dict[tuple, list[Point]] = {}
        for point in rag:
            groups.setdefault((point.structurer, getattr(point, held)), []).append(point)
        for (structurer, value), group in groups.items():
            group = [point for point in group if getattr(point, moving) is not None or value is not None]
            if len(group) < 2:
                continue
            # Most memories first: no threshold, the lowest, …; no k, the largest, …
            keep = [(getattr(point, moving), point) for point in group]
            sign = 1 if moving == "tau" else -1
            group = [point for _, point in sorted(keep, key=lambda pair: (pair[0] is not None, sign * (pair[0] or 0)))]
            first = [ends[ALL_KEPT]] if value is None and ALL_KEPT in ends else []
            last = [ends[NONE_KEPT]] if NONE_KEPT in ends else []
            label = said([f"{name} at {other} {value:g}" if value is not None else name, structurer if several else ""])
            found.append(Curve(label, (*first, *group, *last)))
    return found


def compared(points: Sequence[Point], curve: Curve) -> list[Point]:
    """The arms that a curve is compared with: all that are neither RAG nor an end of it."""
    on_curve = set(map(id, curve.points))
    return [point for point in points if point.structure not in (RAG, NONE_KEPT) and id(point) not in on_curve]


def badness(kind: str, outcome: str, measure: str) -> int:
    """+1 where a high value is bad, −1 where it is wanted."""
    if outcome == "failure" and measure == "rate":
        return 1
    return 1 if FAILURE_TYPES[kind].high_is_bad else -1


def _fitted(curve: Curve, outcome: str, measure: str) -> dict[str, np.ndarray]:
    """The monotone curve in the outcome's own direction, from entries that are complete at every setting."""
    found = {}
    for kind, turn in ((LEAKS, -1), (USES, 1)):
        means = cells_of(curve.points, kind, measure).mean().to_numpy(dtype=float)[None, :]
        sign = badness(kind, outcome, measure) * turn
        found[kind] = sign * monotone(sign * means)[0] + 0.0
    return found


def cells_of(points: Sequence[Point], kind: str, measure: str) -> pd.DataFrame:
    """Entries × points, the entries that are complete in all of them."""
    columns = [point.units[kind][MEASURES[measure]] for point in points]
    return pd.concat(columns, axis=1, join="inner", keys=range(len(columns)))


def _described(point: Point, measure: str) -> dict:
    named = {"arm": point.arm, "structure": point.structure, "setting": point.setting}
    found = named | {"tau": point.tau, "top_k": point.top_k}
    for kind, short in SHORT.items():
        values = point.units[kind][MEASURES[measure]].to_numpy(dtype=float)
        entries = np.arange(len(values))
        interval = wilson_clustered if measure == "rate" else clustered_mean
        low, high = interval(values, entries) if len(values) else (nan, nan)
        value = float(values.mean()) if len(values) else nan
        found |= {f"{short}_{measure}": value, f"{short}_low": low, f"{short}_high": high, f"n_{short}": len(values)}
    return found


def scale_of(kind: str, outcome: str, measure: str) -> tuple[float, float]:
    """The least and the greatest value that an outcome can have."""
    if outcome == "echo" or measure == "rate":
        return 0.0, 1.0
    return float(FAILURE_TYPES[kind].low), float(FAILURE_TYPES[kind].high)


def monotone(values: np.ndarray) -> np.ndarray:
    """Non-decreasing least-squares fit of every row, all values weighing the same.

    The min–max formula of isotonic regression: fitᵢ = max over a ≤ i of the min over b ≥ i of the mean of a … b
    (Robertson, Wright & Dykstra 1988, Order Restricted Statistical Inference, section 1.4). For one row it is
    ``scipy.optimize.isotonic_regression``, which would have to be called once per resample.
    """
    n = values.shape[1]
    total = np.concatenate([np.zeros((len(values), 1)), np.cumsum(values, axis=1)], axis=1)
    columns = [
        np.max([np.min([(total[:, b + 1] - total[:, a]) / (b + 1 - a) for b in range(i, n)], axis=0)
                for a in range(i + 1)], axis=0)
        for i in range(n)
    ]  # fmt: skip
    return np.round(np.stack(columns, axis=1), 12)


def interpolated(
    matched: np.ndarray, other: np.ndarray, at: np.ndarray, least: float, most: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The least `other` on curves at a value of `matched`; outside a curve, what its being monotone still allows.

    Parameters
    ----------
    matched : array, curves × settings
        Non-increasing along the settings.
    other : array, curves × settings
        Non-decreasing.
    at : array, one per curve
    least, most : float
        Ends of the scale of `other`.

    Returns
    -------
    low, high : arrays, one per curve
        The same number inside; below all of a curve from its last value to `most`, above it from `least` to its first.
    inside : array of bool
    """
    found = np.full(len(at), inf)
    for j in range(matched.shape[1] - 1):
        left, right = matched[:, j], matched[:, j + 1]
        gap = left - right
        along = np.divide(left - at, gap, out=np.zeros_like(gap), where=gap > 0)
        value = other[:, j] + along * (other[:, j + 1] - other[:, j])
        found = np.where((right <= at) & (at <= left), np.minimum(found, value), found)
    above, below = at > matched[:, 0], at < matched[:, -1]
    low = np.select([above, below], [least, other[:, -1]], found)
    high = np.select([above, below], [other[:, 0], most], found)
    return low, high, ~(above | below)
