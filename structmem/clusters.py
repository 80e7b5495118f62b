"""Effects as weighted means of outcomes by entry: of one arm, between defences, over models; entries are clusters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import nan, sqrt

import numpy as np
import pandas as pd
from scipy import stats

from .data import FAILURE_TYPES
from .errors import choice
from .intervals import LEVEL, bounded, over_models, tango
from .pairing import arm_keys, compare, said
from .resampling import few_entries, percentile_interval, resampled_means

NO_PAIRS = "no pairs"
TANGO, MOVER = "Tango, paired entries", "MOVER of Tango's, paired entries"
Interval = tuple[float, float, str]  # low, high, and its name or 'not available: …'


@dataclass(frozen=True)
class Effect:
    """A sum of weighted column means, such as a difference over runs and models, or an interaction.

    All cells of an entry hang together, whatever model, defence or arm they belong to, so no independence is assumed
    between arms that met the same entries.

    Attributes
    ----------
    estimate : float
    cells : DataFrame
        One row per entry, one column per model × run (× defence): values, NaN where there is no pair.
    weights : array
        One per column. For an effect that is not linear, such as a log odds ratio, the derivatives (delta method).
    why : str
        Why there is no interval; empty if there is one.
    """

    estimate: float
    cells: pd.DataFrame
    weights: np.ndarray
    why: str = ""

    def __sub__(self, other: Effect) -> Effect:
        cells = pd.concat([self.cells, other.cells], axis=1)
        weights = np.concatenate([self.weights, -other.weights])
        return Effect(self.estimate - other.estimate, cells, weights, self.why or other.why)

    def interval(self, level: float = LEVEL) -> Interval:
        """t interval over entries (degrees of freedom: entries − 1) and its name, or why there is none.

        The variance is m / (m − 1) Σ r², where r is what an entry adds to the estimate's error: the cluster-robust
        variance of a linear statistic (Liang & Zeger 1986, Biometrika 73:13).
        """
        values = self.cells.to_numpy(dtype=float)
        m = len(values)
        if self.why or m < 2:
            return nan, nan, f"not available: {self.why or ('one entry' if m else NO_PAIRS)}"
        there = ~np.isnan(values)
        n = there.sum(axis=0)
        centred = np.where(there, values - np.nansum(values, axis=0) / n, 0.0)
        squares = float(np.sum((centred @ (self.weights / n)) ** 2))
        if squares < 1e-18:
            return nan, nan, "not available: no variation"
        half = stats.t.ppf((1 + level) / 2, m - 1) * sqrt(m / (m - 1) * squares)
        return self.estimate - half, self.estimate + half, "t over entries"

    def bootstrap(self, draws: int, seed: int, levels: Sequence[float]) -> list[Interval]:
        """Percentile intervals of a linear effect: entries drawn with replacement, each with all its cells.

        Rows are sorted by entry, so the same seed gives the intervals of ``pooled_differences``.
        """
        cells = self.cells.sort_index().to_numpy(dtype=float)
        if not len(cells):
            return [(nan, nan, f"not available: {NO_PAIRS}")] * len(levels)
        estimates = resampled_means(cells, draws, np.random.default_rng(seed)) @ self.weights
        return [percentile_interval(estimates, len(cells), level) for level in levels]


NOTHING = Effect(nan, pd.DataFrame(), np.array([]), NO_PAIRS)


def mean_effect(effects: Sequence[Effect]) -> Effect:
    """Mean over models, each weighing the same; it has an interval only if every one has."""
    if not effects:
        return NOTHING
    lacking = [effect.why for effect in effects if effect.why]
    why = f"{lacking[0]} in {len(lacking)} of {len(effects)} models" if lacking else ""
    cells = pd.concat([effect.cells for effect in effects], axis=1)
    weights = np.concatenate([effect.weights for effect in effects]) / len(effects)
    return Effect(float(np.mean([effect.estimate for effect in effects])), cells, weights, why)


@dataclass(frozen=True)
class Arm:
    """One arm of one model against its baseline: the pairs of each run that has any, and what was said about the rows.

    ``named``: model, failure type, display name and settings; ``runs``: failed_arm and failed_baseline by entry.
    """

    named: dict
    baseline: str
    outcome: str
    runs: tuple[pd.DataFrame, ...]
    n_without_pairs: int
    remark: str
    warning: str

    @property
    def bad(self) -> int:
        """+1 where a higher rate is worse, −1 where it is better: an echo is wanted in entries that need memories."""
        kind = FAILURE_TYPES.get(self.named["failure_type"])
        return -1 if self.outcome == "echo" and kind is not None and not kind.high_is_bad else 1

    @property
    def entries(self) -> set:
        """Entries that are complete in both arms in some run."""
        return set().union(*(set(run.index) for run in self.runs))

    @property
    def n_entries(self) -> int:
        """Pairs of the smallest run."""
        return min((len(run) for run in self.runs), default=0)

    def within(self, entries: set) -> Arm:
        """The same arm on some of its entries."""
        runs = [run[run.index.isin(entries)] for run in self.runs]
        return replace(self, runs=tuple(run for run in runs if len(run)))

    @cached_property
    def rates(self) -> dict[str, float]:
        """Failure rate of 'arm' and 'baseline', in [0, 1], each run weighing the same."""
        sides = ("arm", "baseline")
        if not self.runs:
            return dict.fromkeys(sides, nan)
        return {side: float(np.mean([run[f"failed_{side}"].mean() for run in self.runs])) for side in sides}

    @cached_property
    def difference(self) -> Effect:
        """Arm − baseline in pp, each run weighing the same."""
        if not self.runs:
            return NOTHING
        gaps = [100 * (run["failed_arm"] - run["failed_baseline"]) for run in self.runs]
        weights = np.full(len(gaps), 1 / len(gaps))
        return Effect(float(weights @ [gap.mean() for gap in gaps]), pd.concat(gaps, axis=1), weights)

    def interval(self, level: float = LEVEL) -> Interval:
        """Interval of the difference in pp, and its name: Tango's with one run, t over entries with several."""
        if len(self.runs) != 1:
            low, high, name = self.difference.interval(level)
            return *bounded(low, high), name
        low, high = _tango(self.difference.cells.iloc[:, 0].to_numpy(), level)
        return 100 * low, 100 * high, TANGO


def _tango(gaps: np.ndarray, level: float) -> tuple[float, float]:
    """Tango's interval, in [-1, 1], from paired differences that are above 0, 0, below 0 or NaN (no pair)."""
    return tango(int((gaps > 0).sum()), int((gaps < 0).sum()), int((~np.isnan(gaps)).sum()), level)


def mover(gaps: np.ndarray, weights: np.ndarray, level: float = LEVEL) -> tuple[float, float]:
    """Interval of a weighted mean of paired differences of rates, in which the same entries meet every column (MOVER).

    Each column has Tango's interval of its own; how far its ends lie from the estimate, low and high apart, is combined
    as standard errors are, with the correlations of the columns: low = d − √Σ wᵢ wⱼ rᵢⱼ (dᵢ − lᵢ)(dⱼ − lⱼ), high
    likewise (method of variance estimates recovery: Zou & Donner 2008, Statistics in Medicine 27:1693; Donner & Zou
    2012, Statistical Methods in Medical Research 21:347; correlated estimates: Zou 2007, Psychological Methods 12:399).
    So a column without discordant pairs still widens it, which its variance of 0 would not. rᵢⱼ is estimated over
    entries; where a column does not vary it is taken as large as the shared entries allow, the cautious end. Columns
    that contradict each other never make it narrower than independent ones would. With one column it is Tango's.
    Coverage at 95 % (``benchmarks/coverage.py``): 97.4 % on average, too wide with 20 or 40 entries and rates near 0 or
    1 (99.4 %), where Tango's own is too; least 93.0 %, at 100 entries, 3 models and p = .5. One-sided error at 5 %
    (``benchmarks/type1.py``): 3.8 % on average; most 5.8 %, at 200 entries, 7 models and p = .5.

    Parameters
    ----------
    gaps : array, entries × columns (model × run)
        1: only the arm fails, −1: only the baseline fails, 0: they agree, NaN: no pair. Every column has a pair.
    weights : array, one per column
        Positive.
    level : float
        Of the two-sided interval; its ends are one-sided bounds of level (1 + level) / 2.

    Returns
    -------
    (low, high) of arm − baseline, in [-1, 1] for weights whose sum is 1.
    """
    there = ~np.isnan(gaps)
    n = there.sum(axis=0)
    means = np.nansum(gaps, axis=0) / n
    influence = np.where(there, gaps - means, 0.0) / n
    covariance, shared = influence.T @ influence, there.T.astype(float) @ there
    scale, most = (np.sqrt(np.outer(np.diag(matrix), np.diag(matrix))) for matrix in (covariance, shared))
    correlation = np.where(scale > 1e-15, covariance / np.where(scale > 1e-15, scale, 1), shared / most)
    np.fill_diagonal(correlation, 1.0)
    lows, highs = np.array([_tango(column, level) for column in gaps.T]).T
    below, above = (
        float(np.sqrt(max(reach @ correlation @ reach, reach @ reach)))
        for reach in (weights * (means - lows), weights * (highs - means))
    )
    return float(weights @ means) - below, float(weights @ means) + above


def over_these_models(arms: Sequence[Arm], level: float = LEVEL) -> Interval:
    """Interval in pp of the mean over models, each weighing the same, and its name: Tango's, or ``mover`` of several.

    Several runs of a model are columns of their own that share its weight, with their correlations over entries.
    """
    effect = mean_effect([arm.difference for arm in arms if arm.runs])
    if not len(effect.weights):
        return nan, nan, f"not available: {NO_PAIRS}"
    low, high = mover(effect.cells.to_numpy(dtype=float) / 100, effect.weights, level)
    return 100 * low, 100 * high, TANGO if len(effect.weights) == 1 else MOVER


def paired_arms(
    results: pd.DataFrame, baseline: str, outcome: str, failure_type: str | None = None
) -> tuple[list[Arm], list[str]]:
    """Every arm of every model with its pairs, in the order of ``paired_differences``, and the settings' names.

    Raises
    ------
    InputError
        As ``paired_differences``; also for a failure type that the results lack.
    """
    if failure_type is not None and len(results) and "failure_type" in results:
        if failure_type not in (there := set(results["failure_type"].dropna())):
            raise choice("failure_type", failure_type, there)
        results = results[results["failure_type"].eq(failure_type).fillna(False)]
    table, behind = compare(results, ["model"], baseline, outcome)
    if not len(table):
        return [], []
    keys = ["model", *arm_keys(table)]
    arms = []
    for key, group in table.groupby(keys, sort=False):
        runs = [behind[position].pairs.set_index("entry_id").astype(float) for position in group.index]
        found = tuple(run for run in runs if len(run))
        words = said(group["remark"]), said(group["warning"])
        named = dict(zip(keys, key, strict=True))
        arms.append(Arm(named, baseline, outcome, found, len(runs) - len(found), *words))
    return arms, keys


def over_new_models(values: Sequence[float], level: float = LEVEL, most: float = 100.0) -> Interval:
    """t interval over one value per model, assumed exchangeable, within ±most; and its name, or why there is none."""
    over = over_models(values, level)
    if np.isnan(over.low):
        why = "no variation" if over.n > 1 else "one model" if over.n else NO_PAIRS
        return nan, nan, f"not available: {why}"
    return *bounded(over.low, over.high, most), "t over models, assumed exchangeable"


def told(group: Sequence[Arm], bootstrap: bool = True) -> dict:
    """What a row over models says of the arms behind it: n_models, n_runs, remark, warning.

    ``bootstrap``: whether its interval is one, which is too narrow with few entries.
    """
    found = [arm for arm in group if arm.runs]
    lost, warned = len(group) - len(found), sum(bool(arm.warning) for arm in group)
    entries = set().union(*(arm.entries for arm in found))
    remark = [f"{lost} of {len(group)} models without pairs, not in the mean" if lost and found else ""]
    remark.append(few_entries(len(entries)) if bootstrap else "")
    return {
        "n_entries": len(entries), "n_models": len(found), "n_runs": sum(len(arm.runs) for arm in found),
        "remark": said(remark), "warning": f"warnings for {warned} of {len(group)} models" if warned else "",
    }  # fmt: skip


def exploratory(table: pd.DataFrame, rows: pd.Series, why: str) -> pd.DataFrame:
    """A stamped table in which some rows are exploratory for a reason that its columns do not show."""
    notes = [said([note, why]) if row else note for note, row in zip(table["analysis_note"], rows, strict=True)]
    return table.assign(analysis=table["analysis"].mask(rows, "exploratory"), analysis_note=notes)
