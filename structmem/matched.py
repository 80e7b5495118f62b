"""RAG against structures at equal leakage and at equal beneficial use, interpolated on its trade-off curve."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from typing import NamedTuple

import numpy as np
import pandas as pd

from .analysis_plan import planned_draws
from .clusters import Interval
from .comparisons import ALL_MODELS, THESE_MODELS
from .errors import InputError
from .matched_words import between_words, comparison_words, outside_words
from .outcomes import sort_arms
from .pairing import said, tells_apart
from .ragcurves import (
    LEAKS,
    SHORT,
    USES,
    Curve,
    Point,
    badness,
    cells_of,
    compared,
    curves_of,
    interpolated,
    monotone,
    prepared,
    scale_of,
)
from .resampling import check_draws, few_entries, percentile_interval, resampled_means
from .stamping import stamped

SHAPE = "monotone (isotonic regression), straight between neighbouring settings"


def matched_differences(
    results: pd.DataFrame,
    outcome: str | None = None,
    measure: str | None = None,
    draws: int | None = None,
    seed: int | None = None,
) -> pd.DataFrame:
    """Structures against RAG at the same leakage, and at the same beneficial use, never at one threshold.

    RAG trades one for the other: the fewer memories it keeps, the less leaks and the less helps. Its settings over τ
    (``threshold``) or k (``top_k``) make a curve of cross_domain against beneficial outcomes; ``flat`` (τ = −1 keeps
    every memory, in the same order) and ``empty`` (k = 0) are its ends where the results have them. Along the curve
    both outcomes are taken to be monotone in the number of memories kept and fitted so (isotonic regression, every
    setting weighing the same), with straight lines between neighbouring settings. Where several settings have the
    matched value, RAG's best one counts. Outside the curve there is no number: nothing is extrapolated.

    Parameters
    ----------
    results : DataFrame
        One row per generation, with ``rag`` at two or more settings and both failure types, cross_domain and
        beneficial_memory_usage. Arms are compared under the same model, renderer, placement, defence, system prompt and
        judge; the runs of an arm (replicates, draws) are averaged per entry.
    outcome : 'failure', 'echo' or None
        None: 'echo' where every row was checked by the echo measure, else 'failure'. An echo is wanted in beneficial
        entries and unwanted in cross_domain ones.
    measure : 'rate', 'mean' or None
        'rate': FR@K, or the echo rate; 'mean': the mean score, or the mean overlap. None: 'rate', unless RAG has the
        same rate at every setting in one of the two failure types, so that there is nothing to match.
    draws, seed : int, optional
        Of the bootstrap. Default: the analysis plan's.

    Returns
    -------
    DataFrame
        One row per model × arm × ``curve`` ('τ', 'k', 'τ at k 5', …) × ``matched_on`` (cross_domain: equal leakage;
        beneficial_memory_usage: equal use), and over several models a row 'all models', each weighing the same.
        ``matched_rate`` (or ``matched_mean``): the arm's value there; ``between`` which settings of RAG have it;
        ``arm_rate``, ``rag_rate``: the other failure type's value of the arm, and of RAG there; ``difference_pp`` = arm
        − RAG with ``low_pp``, ``high_pp`` (or ``mean_difference`` with ``mean_low``, ``mean_high``): 95 % expanded
        percentile interval of a bootstrap in which the entries of the two failure types are drawn separately and the
        whole curve is made again each time (``interval``). ``outside_share`` of the draws in which the arm lies outside
        the curve: the low end takes them at the least and the high end at the greatest difference that a monotone curve
        and the scale allow. ``reading`` in words, ``reason`` where there is no number. ``n_cross_domain``,
        ``n_beneficial`` entries complete in the arm and at every setting, with ``generations`` answers each;
        ``n_models``, ``shape``, ``outcome``, ``measure``, ``remark``.

    Raises
    ------
    InputError
        Results without both failure types, without RAG at two settings of τ or k, or as ``failure_rate``.
    """
    draws, seed = planned_draws(draws, seed)
    check_draws(draws, seed)
    outcome, contexts, measure, why = prepared(results, outcome, measure)
    groups: dict[tuple, list[tuple[str, Curve, Point]]] = {}
    for context, points in contexts:
        for curve in curves_of(points):
            for point in compared(points, curve):
                settings = {key: value for key, value in context.items() if key != "model"}
                named = settings | {"arm": point.arm} | point.own | {"curve": curve.name}
                groups.setdefault(tuple(named.items()), []).append((context["model"], curve, point))
    rows = []
    for named, group in groups.items():
        rows += [dict(named) | row for row in _matched(group, outcome, measure, draws, seed)]
    if not rows:
        raise InputError(
            "There is no structure to compare with RAG's curve: run at least one more beside rag, flat and empty."
        )
    table = pd.DataFrame(rows).assign(outcome=outcome, measure=measure, shape=SHAPE)
    table["remark"] = [said([remark, why]) for remark in table["remark"]]
    settings = [key for key in contexts[0][0] if key != "model"]
    own = [key for key in contexts[0][1][0].own if key not in ("structure", "structurer")]
    names = [key for key in (*settings, *own) if tells_apart(table, key)]
    first = ["model", *names, "arm", "structure", "structurer", "curve", "matched_on", "compared"]
    table = table[[*first, *[column for column in table if column not in (*first, *settings, *own)]]]
    order = {kind: place for place, kind in enumerate((LEAKS, USES))}
    table = table.assign(_on=table["matched_on"].map(order), _all=table["model"].eq(ALL_MODELS))
    table = sort_arms(table, [*names, "curve", "_on", "structure", "structurer", "_all", "model"])
    note = "comparisons at matched values are not planned"
    table = stamped(table.drop(columns=["_on", "_all"]), results, drawn=(draws, seed))
    return table.assign(analysis_note=note)


# --------------------------------------------------------------------------------------------------------- estimates


def _matched(
    group: Sequence[tuple[str, Curve, Point]], outcome: str, measure: str, draws: int, seed: int
) -> list[dict]:
    """Rows of one arm against one kind of curve, per model and over models, matched on either failure type."""
    cells = {kind: [cells_of((*curve.points, point), kind, measure) for _, curve, point in group] for kind in SHORT}
    lacking = [_lacking(curve, point, measure) for _, curve, point in group]
    usable = [place for place, why in enumerate(lacking) if not why]
    rng = np.random.default_rng(seed)
    drawn: dict[str, list[np.ndarray]] = {}
    for kind, tables in cells.items():
        if not usable:
            break
        wide = pd.concat([tables[place] for place in usable], axis=1).sort_index().to_numpy(dtype=float)
        ends = np.cumsum([tables[place].shape[1] for place in usable])[:-1]
        # All models meet the same entries, which are drawn once for all.
        drawn[kind] = np.split(resampled_means(wide, draws, rng), ends, axis=1)
    rows = []
    for matched_on in (LEAKS, USES):
        resampled, found = [], []
        for place, (model, curve, point) in enumerate(group):
            n = {f"n_{SHORT[kind]}": len(cells[kind][place]) for kind in SHORT}
            named = {"model": model, "matched_on": matched_on, "estimand": THESE_MODELS, "n_models": 1} | n
            named |= {"generations": _generations(point)}
            if lacking[place]:
                found.append(named | _nothing(matched_on, measure, lacking[place]))
                continue
            once = {kind: cells[kind][place].mean().to_numpy(dtype=float)[None, :] for kind in SHORT}
            again = {kind: drawn[kind][usable.index(place)] for kind in SHORT}
            estimate = Matched(*(float(one[0]) for one in _difference(once, matched_on, outcome, measure)))
            resampled.append(_difference(again, matched_on, outcome, measure))
            words = named, point, curve, once, matched_on, outcome, measure
            found.append(_row(*words, estimate, resampled[-1], min(n.values())))
        rows += found
        if len(group) > 1:
            rows.append(_over_models(found, resampled, matched_on, measure, outcome, _other_settings(group)))
    return rows


def _generations(point: Point) -> str:
    """Answers per entry: '1', or '3 and 1' where the two failure types differ."""
    return " and ".join(dict.fromkeys("/".join(map(str, point.generations[kind])) for kind in SHORT))


def _lacking(curve: Curve, point: Point, measure: str) -> str:
    """Why an arm cannot be compared with a curve at all; empty if it can."""
    for kind in SHORT:
        kays = {k for one in (*curve.points, point) for k in one.generations[kind]}
        if measure == "rate" and len(kays) > 1:
            return f"not comparable: {' and '.join(map(str, sorted(kays)))} generations per {kind} entry"
        if not len(cells_of((*curve.points, point), kind, measure)):
            return f"no {kind} entry is complete in the arm and at every setting of RAG"
    return ""


class Matched(NamedTuple):
    """Arm − RAG at a matched value: the least and the greatest that is possible, alike inside the curve."""

    low: np.ndarray | float
    high: np.ndarray | float
    inside: np.ndarray | float


def _difference(means: dict[str, np.ndarray], matched_on: str, outcome: str, measure: str) -> Matched:
    """Arm − RAG of the failure type that is not matched on, per row of means (the settings of RAG, then the arm)."""
    other = USES if matched_on == LEAKS else LEAKS
    bad = {kind: badness(kind, outcome, measure) for kind in means}
    at = {kind: np.round(bad[kind] * means[kind], 12) for kind in means}
    curve = {LEAKS: -monotone(-at[LEAKS][:, :-1]), USES: monotone(at[USES][:, :-1])}
    if matched_on == USES:  # seen from the setting that keeps least, use falls and leakage rises
        curve = {kind: values[:, ::-1] for kind, values in curve.items()}
    ends = sorted(bad[other] * end for end in scale_of(other, outcome, measure))
    low, high, inside = interpolated(curve[matched_on], curve[other], at[matched_on][:, -1], *ends)
    gaps = at[other][:, -1] - high, at[other][:, -1] - low
    return Matched(*(gaps if bad[other] > 0 else (-gaps[1], -gaps[0])), inside)


def _row(
    named: dict, point: Point, curve: Curve, once: dict, matched_on: str, outcome: str, measure: str,
    estimate: Matched, again: Matched, n: int,
) -> dict:  # fmt: skip
    other = USES if matched_on == LEAKS else LEAKS
    sign = badness(matched_on, outcome, measure)
    own, value = (float(once[kind][0, -1]) for kind in (matched_on, other))
    turn = sign if matched_on == USES else -sign
    fitted = turn * monotone(turn * once[matched_on][:, :-1])[0] + 0.0
    n_lost = sum(point.n_asked[kind] - len(point.units[kind]) for kind in SHORT)
    remark = f"{n_lost} entries of the arm are not complete" if n_lost else ""
    if not estimate.inside:
        why = outside_words(point.arm, own, fitted, matched_on, outcome, measure)
        return named | _nothing(matched_on, measure, why) | {f"matched_{measure}": own, "remark": remark}
    at = between_words(fitted, own, [one.setting or one.arm for one in curve.points])
    found = {"compared": other, f"matched_{measure}": own, "between": at}
    found |= {f"arm_{measure}": value, f"rag_{measure}": value - estimate.low}
    return named | found | _estimated(estimate.low, again, n, other, outcome, measure, remark)


def _estimated(
    estimate: float, again: Matched, n: int, other: str, outcome: str, measure: str, remark: str = ""
) -> dict:
    """An estimate with its interval, whose ends take draws outside the curve at their worst."""
    low, _, name = percentile_interval(again.low, n)
    _, high, _ = percentile_interval(again.high, n)
    if np.isnan(low) or np.isnan(high):
        low = high = nan
    reading = comparison_words(low, high, badness(other, outcome, measure))
    found = _scaled(estimate, (low, high, name), measure) | {"outside_share": float(np.mean(again.inside < 1))}
    return found | {"reading": reading, "reason": "", "remark": said([remark, few_entries(n)])}


def _scaled(estimate: float, interval: Interval, measure: str) -> dict:
    low, high, name = interval
    if measure == "rate":
        return {"difference_pp": 100 * estimate, "low_pp": 100 * low, "high_pp": 100 * high, "interval": name}
    return {"mean_difference": estimate, "mean_low": low, "mean_high": high, "interval": name}


def _nothing(matched_on: str, measure: str, why: str) -> dict:
    compared = USES if matched_on == LEAKS else LEAKS
    words = {"compared": compared, "between": "", "reading": "no number", "reason": why, "remark": ""}
    return (
        dict.fromkeys(_means(measure), nan)
        | _scaled(nan, (nan, nan, "not available: no estimate"), measure)
        | {"outside_share": nan}
    ) | words


def _other_settings(group: Sequence[tuple[str, Curve, Point]]) -> str:
    """That the models' curves do not go through the same settings; empty if they do."""
    settings = {tuple(one.setting or one.arm for one in curve.points) for _, curve, _ in group}
    return "the models' curves go through different settings" if len(settings) > 1 else ""


def _over_models(
    found: list[dict], resampled: list[Matched], matched_on: str, measure: str, outcome: str, remark: str
) -> dict:
    """The mean over models, each weighing the same; none where some of them have no number."""
    named = {"model": ALL_MODELS, "matched_on": matched_on, "estimand": THESE_MODELS, "n_models": len(found)}
    n = {name: min(row[name] for row in found) for name in ("n_cross_domain", "n_beneficial")}
    n |= {"generations": "; ".join(dict.fromkeys(row["generations"] for row in found))}
    missing = [row["model"] for row in found if row["reason"]]
    if missing:
        why = f"{len(missing)} of {len(found)} models have no number ({', '.join(missing)}): no mean over models"
        return named | n | _nothing(matched_on, measure, why)
    column, times = ("difference_pp", 100) if measure == "rate" else ("mean_difference", 1)
    estimate = float(np.mean([row[column] for row in found])) / times
    again = Matched(*(np.mean([getattr(one, name) for one in resampled], axis=0) for name in Matched._fields))
    means = {name: float(np.mean([row[name] for row in found])) for name in _means(measure)}
    other = found[0]["compared"]
    least = min(n["n_cross_domain"], n["n_beneficial"])
    made = _estimated(estimate, again, least, other, outcome, measure, remark)
    return named | n | {"compared": other, "between": ""} | means | made


def _means(measure: str) -> list[str]:
    return [f"{name}_{measure}" for name in ("matched", "arm", "rag")]
