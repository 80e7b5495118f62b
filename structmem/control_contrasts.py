"""The ladder of controls: what order, a heading, grouping and names each add between the flat list and a partition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import nan, sqrt
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from .clusters import Effect, exploratory, mean_effect
from .comparisons import ALL_MODELS
from .errors import InputError
from .intervals import LEVEL, bounded
from .outcomes import NONE, OF_STRUCTURE, display_structure, is_echo, sort_arms, unit_rows
from .pairing import said, with_numbers
from .stamping import stamped

LADDER, WHOLE, SIDE, OTHER, NOISE = "step", "whole", "side", "changes the information", "noise"
RUNGS = ("flat", "reordered", "one_group", "unlabelled", "fixed")


class Contrast(NamedTuple):
    """A declared contrast: its part, in words what the arm has that the baseline has not, and the two structures."""

    part: str
    adds: str
    structure: str
    baseline: str


# Declared before any result: the four steps each add one thing, and their differences add up to the whole.
CONTRASTS = (
    Contrast(LADDER, "order", "reordered", "flat"),
    Contrast(LADDER, "heading", "one_group", "reordered"),
    Contrast(LADDER, "grouping", "unlabelled", "one_group"),
    Contrast(LADDER, "naming", "fixed", "unlabelled"),
    Contrast(WHOLE, "all four", "fixed", "flat"),
    Contrast(SIDE, "random order", "shuffled", "flat"),
    Contrast(SIDE, "random members", "random", "fixed"),
    Contrast(SIDE, "wrong names", "relabelled", "fixed"),
    Contrast(SIDE, "leaves under domains", "tree", "tree_top"),
    Contrast(SIDE, "leaves for domains", "tree_leaves", "tree_top"),
    Contrast(SIDE, "domains over leaves", "tree", "tree_leaves"),
    Contrast(SIDE, "reference labels", "oracle", "fixed"),
    Contrast(OTHER, "relevant domains only", "gated", "flat"),
    Contrast(OTHER, "what the model picks only", "self_check", "flat"),
    Contrast(OTHER, "near memories only", "rag", "flat"),
    Contrast(OTHER, "no memories", "empty", "flat"),
    Contrast(NOISE, "a second run", "flat", "flat"),
)
_NAMES = {name for contrast in CONTRASTS for name in contrast[2:]}
# Sorted by whoever sorts the ladder; the others have no structurer, or one of their own.
_SORTED = (*RUNGS[1:], "random", "relabelled", "tree", "tree_top", "tree_leaves", "gated")
# Outcome of an entry → (estimate, low, high, interval, p, Holm's p, share with its bounds), and its factor.
_MEASURES = {
    "failed": (("difference_pp", "low_pp", "high_pp", "interval", "t_p", "holm_p", "gain_share"), 100),
    "failed_one": (("at_1_difference_pp", "at_1_low_pp", "at_1_high_pp", None, None, None, None), 100),
    "mean_value": (
        ("mean_score_difference", "mean_score_low", "mean_score_high", "mean_score_interval", "mean_score_t_p",
         "mean_score_holm_p", "mean_score_gain_share"), 1,
    ),
}  # fmt: skip
_COLUMNS = (
    "part", "adds", "arm", "baseline", "n_entries", "n_left_out", "n_models", "n_generations", "n_runs", "n_draws",
    "difference_pp", "low_pp", "high_pp", "interval", "t_p", "holm_p",
    "gain_share", "gain_share_low", "gain_share_high", "at_1_difference_pp", "at_1_low_pp", "at_1_high_pp",
    "mean_score_difference", "mean_score_low", "mean_score_high", "mean_score_interval", "mean_score_t_p",
    "mean_score_holm_p", "mean_score_gain_share", "mean_score_gain_share_low", "mean_score_gain_share_high",
    "draw_sd_pp", "draw_sd_mean_score", "outcome", "remark",
)  # fmt: skip


def ladder(results: pd.DataFrame, outcome: str | None = None) -> pd.DataFrame:
    """How much of the difference between `fixed` and `flat` is order, a heading, grouping, naming; and side contrasts.

    The steps ``flat → reordered → one_group → unlabelled → fixed`` are compared on the entries that are complete in all
    five arms, so that their differences add up to the whole. Every other contrast (``CONTRASTS``) is about the entries
    complete in its two arms; those marked 'changes the information' show other memories, so that their difference is
    not one of layout. An entry counts once: its value is the mean over the runs of the arm (random draws, partition
    draws, replicates that all arms have). A ladder stands for one way of sorting: several structurers or taxonomies
    make rows of their own.

    Parameters
    ----------
    results : DataFrame
        One row per generation.
    outcome : 'failure', 'echo' or None
        None: 'echo' if every row was judged by ``echo``, else 'failure'.

    Returns
    -------
    DataFrame
        One row per model (then 'all models', each weighing the same) × contrast (× settings that differ). ``part`` is
        'step', 'whole', 'side', 'changes the information' or 'noise' (a second run of the flat list); ``adds`` says
        what differs. ``difference_pp`` = arm − baseline of the rate, ``at_1_difference_pp`` of the rate of single
        answers, and ``mean_score_difference`` of the mean score (echo: mean overlap, in [0, 1]), each with its 95 %
        interval (``interval``: t over entries, all models and runs of an entry together, which assumes that entries
        are independent). ``t_p`` and ``mean_score_t_p`` are two-sided; ``holm_p`` and ``mean_score_holm_p`` are Holm's
        over the four steps of the row's model, in which a step without a p-value counts as 1. ``gain_share`` is a
        step's part of the whole, with Fieller's interval (1954, Journal of the Royal Statistical Society B 16:175),
        only where the whole's interval excludes 0. ``n_draws`` random or partition draws per entry; ``draw_sd_pp`` and
        ``draw_sd_mean_score``: spread (n − 1) over draws of the mean difference. ``n_entries``, ``n_left_out`` (asked
        in one of the arms and not complete in all), ``n_models``, ``n_generations``, ``n_runs`` of the arm,
        ``remark`` in words.

    Raises
    ------
    InputError
        Results that hold no contrast of the ladder, an arm that was made under several options, or as
        ``paired_differences``.
    """
    outcome = outcome or ("echo" if is_echo(results) else "failure")
    units, arm = unit_rows(results, (), outcome)
    units = units[units["structure"].isin(_NAMES)]
    shared = ["failure_type", *[c for c in arm if c not in (*OF_STRUCTURE, "model", "failure_type")]]
    rows: list[dict] = []
    for named, models in _ladders(units, shared):
        found = {model: list(_contrasts(arms)) for model, arms in models.items()}
        for model, compared in found.items():
            rows += _rows(compared, named | {"model": model})
        if len(models) > 1:
            rows += _rows(list(_over_models(list(found.values()))), named | {"model": ALL_MODELS})
    if not rows and len(results):
        raise InputError(
            f"results hold the structures {sorted(results['structure'].dropna().unique())}, and none of the ladder's "
            f"contrasts is between two of them; run structures={list(RUNGS)} for the four steps."
        )
    settings = [*shared, *[c for c in ("structurer", "taxonomy") if c in units]]
    table = pd.DataFrame(rows, columns=[*settings, "model", *_COLUMNS]).assign(outcome=outcome)
    kept = [c for c in settings if c in ("failure_type", "threshold") or table[c].nunique() > 1]
    order = sort_arms(table[["failure_type"]].assign(position=range(len(table))), ["failure_type", "position"])
    table = with_numbers(table.iloc[order["position"]].reset_index(drop=True)[[*kept, "model", *_COLUMNS]])
    of_all = pd.Series(True, index=table.index)
    return exploratory(stamped(table, results), of_all, "a mean over runs, on the entries of the ladder")


@dataclass(frozen=True)
class _Arm:
    """One structure of one model: entries × runs for each outcome, NaN where incomplete; what a run is; generations."""

    name: str
    outcomes: dict[str, pd.DataFrame]
    generations: int

    @property
    def complete(self) -> set:
        values = self.outcomes["failed"]
        return set(values.index[values.notna().all(axis=1)])

    def draws(self, outcome: str, entries: list) -> list[pd.Series]:
        """Per draw the mean over replicates, of some entries."""
        values = self.outcomes[outcome].loc[entries]
        of_draw = values.columns.get_level_values("partition_draw")
        return [values.loc[:, of_draw == draw].mean(axis=1) for draw in of_draw.unique()]


class _Compared(NamedTuple):
    contrast: Contrast
    arm: str
    effects: dict[str, Effect]
    counts: dict
    draws: dict[str, np.ndarray]  # mean difference of each draw
    remark: str


def _ladders(units: pd.DataFrame, shared: list[str]) -> Iterator[tuple[dict, dict[str, dict[str, _Arm]]]]:
    """Per setting and way of sorting: its names, and the arms of each model."""
    for column in (*OF_STRUCTURE, "model"):
        if column not in units:
            units = units.assign(**{column: 0 if column in ("partition_draw", "replicate") else NONE})
    who = ["structurer", "taxonomy"]
    for context, group in units.groupby(shared, sort=False):
        is_sorted = group["structure"].isin(_SORTED)
        ways = group.loc[is_sorted, who].drop_duplicates()
        for way in ways.itertuples(index=False) if len(ways) else (None,):
            same = True if way is None else group[who].eq(list(way)).all(axis=1)
            mine = group[~is_sorted | same]
            named = dict(zip(shared, context, strict=True)) | (dict(zip(who, way, strict=True)) if way else {})
            yield named, {model: _arms(rows) for model, rows in mine.groupby("model", sort=False)}


def _arms(rows: pd.DataFrame) -> dict[str, _Arm]:
    """The arms of one model by structure; the flat list's further runs are the arm '' (noise)."""
    by_structure = dict(iter(rows.groupby("structure", sort=False)))
    for structure, group in by_structure.items():
        several = [c for c in ("structurer", "structurer_options", "taxonomy") if group[c].nunique() > 1]
        if several:
            shown = sorted(map(str, group[several[0]].unique()))[:3]
            raise InputError(
                f"structure {structure!r} is there under several {several[0]}, such as {shown}; a ladder has one arm "
                "of each structure: select one of them first."
            )
    common = set.intersection(*(set(group["replicate"]) for group in by_structure.values()))
    found = {}
    for structure, group in by_structure.items():
        used = group[group["replicate"].isin(common)] if common else group
        found[structure] = _arm(used)
    if "flat" in by_structure:
        flat = by_structure["flat"]
        more = flat[flat["replicate"] != min(flat["replicate"], key=str)]
        if len(more):
            found[""] = _arm(more)
            found["flat, first run"] = _arm(flat.drop(more.index))
    return found


def _arm(group: pd.DataFrame) -> _Arm:
    first = group.iloc[0]
    runs = ["replicate", "partition_draw"]
    wide = group.pivot(index="entry_id", columns=runs, values=list(_MEASURES)).astype(float)
    outcomes = {name: wide[name] for name in _MEASURES}
    name = display_structure(first["structure"], first["structurer"])
    return _Arm(name, outcomes, int(first["expected"]))


def _contrasts(arms: dict[str, _Arm]) -> Iterator[_Compared]:
    """Every declared contrast whose two arms are there."""
    rungs = [arms[name] for name in RUNGS if name in arms]
    lacking = [name for name in RUNGS if name not in arms]
    for contrast in CONTRASTS:
        noise = contrast.part == NOISE
        arm = arms.get("" if noise else contrast.structure)
        baseline = arms.get("flat, first run" if noise else contrast.baseline)
        if arm is None or baseline is None:
            continue
        of_ladder = contrast.part in (LADDER, WHOLE)
        needed = rungs if of_ladder else [arm, baseline]
        entries = sorted(set.intersection(*(one.complete for one in needed)))
        asked = set().union(*(one.outcomes["failed"].index for one in needed))
        remark = [f"the ladder is not whole, without {', '.join(lacking)}" if of_ladder and lacking else ""]
        if len({one.generations for one in needed}) > 1:
            entries = []
            remark.append(f"not comparable: K = {arm.generations}, the baseline has {baseline.generations}")
        elif not entries:
            remark.append(f"no entry is complete in {'all arms' if of_ladder else 'both arms'}")
        counts = {"n_entries": len(entries), "n_left_out": len(asked) - len(entries), "n_models": 1}
        counts |= {"n_generations": arm.generations, "n_runs": arm.outcomes["failed"].shape[1]}
        effects, draws = {}, {}
        for outcome, (_, factor) in _MEASURES.items():
            theirs = factor * baseline.outcomes[outcome].loc[entries].mean(axis=1)
            gaps = factor * arm.outcomes[outcome].loc[entries].mean(axis=1) - theirs
            effects[outcome] = Effect(float(gaps.mean()) if entries else nan, gaps.to_frame(), np.ones(1))
            draws[outcome] = np.array([(factor * draw - theirs).mean() for draw in arm.draws(outcome, entries)])
        name = "flat (A/A)" if noise else arm.name
        yield _Compared(contrast, name, effects, counts, draws, said(remark))


def _over_models(models: list[list[_Compared]]) -> Iterator[_Compared]:
    """Each contrast's mean over the models that have it, each weighing the same."""
    for contrast in CONTRASTS:
        every = [one for model in models for one in model if one.contrast == contrast]
        some = [one for one in every if one.counts["n_entries"]]
        if not every:
            continue
        missing = len(models) - len(some)
        remark = f"{missing} of {len(models)} models without pairs, not in the mean" if missing and some else ""
        remark = remark or ("" if some else "no entry is complete in the arms of any model")
        entries = set().union(*(one.effects["failed"].cells.index for one in some))
        counts = every[0].counts | {"n_entries": len(entries), "n_models": len(some)}
        counts |= {name: sum(one.counts[name] for one in every) for name in ("n_left_out", "n_runs")}
        effects = {outcome: mean_effect([one.effects[outcome] for one in some]) for outcome in _MEASURES}
        alike = len({len(one.draws["failed"]) for one in some}) == 1  # draw by draw, where all models have as many
        draws = {
            name: np.mean([one.draws[name] for one in some], axis=0) if alike else np.array([]) for name in effects
        }
        yield _Compared(contrast, every[0].arm, effects, counts, draws, said([remark, *(one.remark for one in some)]))


def _rows(compared: list[_Compared], named: dict) -> list[dict]:
    rows = []
    for one in compared:
        row = named | {"part": one.contrast.part, "adds": one.contrast.adds, "arm": one.arm}
        row |= {"baseline": one.contrast.baseline, "n_draws": len(one.draws["failed"])} | one.counts
        for column, outcome in (("draw_sd_pp", "failed"), ("draw_sd_mean_score", "mean_value")):
            row[column] = float(one.draws[outcome].std(ddof=1)) if len(one.draws[outcome]) > 1 else nan
        for outcome, ((estimate, low, high, interval, p, *_), factor) in _MEASURES.items():
            effect = one.effects[outcome]
            lower, upper, words = effect.interval()
            row |= {interval: words, p: _p(effect, lower, upper)} if interval else {}
            lower, upper = bounded(lower, upper) if factor == 100 else (lower, upper)
            row |= {estimate: effect.estimate, low: lower, high: upper}
        rows.append(row | {"remark": one.remark})
    steps = [(row, one) for row, one in zip(rows, compared, strict=True) if one.contrast.part == LADDER]
    whole = [(row, one) for row, one in zip(rows, compared, strict=True) if one.contrast.part == WHOLE]
    for outcome, (names, _) in _MEASURES.items():
        if names[4]:
            adjusted = _holm([row[names[4]] for row, _ in steps])
            for (row, _), p in zip(steps, adjusted, strict=True):
                row[names[5]] = p
            if len(steps) == 4 and whole:
                _shares(steps, *whole[0], outcome, names)
    return rows


def _holm(p_values: list[float]) -> np.ndarray:
    """Holm over all steps; a step without a p-value counts as 1 and has none afterwards."""
    from statsmodels.stats.multitest import multipletests

    raw = np.array(p_values, dtype=float)
    if np.isnan(raw).all():
        return raw
    return np.where(np.isnan(raw), nan, multipletests(np.nan_to_num(raw, nan=1.0), method="holm")[1])


def _p(effect: Effect, low: float, high: float) -> float:
    """Two-sided p of the t test whose interval is given."""
    df = len(effect.cells) - 1
    if np.isnan(low):
        return nan
    error = (high - low) / 2 / stats.t.ppf((1 + LEVEL) / 2, df)
    return float(2 * stats.t.sf(abs(effect.estimate) / error, df))


def _shares(steps: list, whole_row: dict, whole: _Compared, outcome: str, names: tuple) -> None:
    """Each step's share of the whole; refused in words where the whole may be nothing."""
    total = whole.effects[outcome]
    parts = [one.effects[outcome] for _, one in steps]
    # On the same entries the steps add up to the whole, whatever the numbers.
    assert np.isnan(total.estimate) or abs(sum(part.estimate for part in parts) - total.estimate) < 1e-6
    low, high = whole_row[names[1]], whole_row[names[2]]
    what = "rate" if outcome == "failed" else "mean score"
    if not (low > 0 or high < 0):  # also where there is no interval
        why = "its interval holds 0" if low <= 0 <= high else "it has no interval"
        whole_row["remark"] = said([whole_row["remark"], f"no shares of the {what}'s difference: {why}"])
        return
    for (row, _), part in zip(steps, parts, strict=True):
        bounds = _fieller(part, total)
        row |= dict(zip((names[6], f"{names[6]}_low", f"{names[6]}_high"), bounds, strict=True))


def _fieller(part: Effect, whole: Effect) -> tuple[float, float, float]:
    """Ratio of two means over the same entries, and Fieller's interval; the whole's own interval excludes 0."""
    a, b = part.estimate, whole.estimate
    one, other = _influence(part), _influence(whole)
    m = len(one)
    reach = stats.t.ppf((1 + LEVEL) / 2, m - 1) ** 2 * m / (m - 1)
    top, mixed, bottom = a * a - reach * one @ one, a * b - reach * one @ other, b * b - reach * other @ other
    half = sqrt(max(mixed * mixed - top * bottom, 0.0))
    return a / b, (mixed - half) / bottom, (mixed + half) / bottom


def _influence(effect: Effect) -> np.ndarray:
    """What each entry adds to the error of an effect, as in ``Effect.interval``."""
    values = effect.cells.sort_index().to_numpy(dtype=float)
    there = ~np.isnan(values)
    n = there.sum(axis=0)
    return np.where(there, values - np.nansum(values, axis=0) / n, 0.0) @ (effect.weights / n)
