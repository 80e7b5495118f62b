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
from .intervals import LEVEL, over_models, tango
from .pairing import arm_keys, compare, said
from .resampling import few_entries, percentile_interval, resampled_means

NO_PAIRS = "no pairs"
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
            return self.difference.interval(level)
        run = self.runs[0]
        only_arm = int((run["failed_arm"] > run["failed_baseline"]).sum())
        only_baseline = int((run["failed_arm"] < run["failed_baseline"]).sum())
        low, high = tango(only_arm, only_baseline, len(run), level)
        return 100 * low, 100 * high, "Tango, paired entries"


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


def over_new_models(values: Sequence[float], level: float = LEVEL) -> Interval:
    """t interval over one value per model, assumed exchangeable, and its name, or why there is none."""
    over = over_models(values, level)
    if np.isnan(over.low):
        why = "no variation" if over.n > 1 else "one model" if over.n else NO_PAIRS
        return nan, nan, f"not available: {why}"
    return over.low, over.high, "t over models, assumed exchangeable"


def told(group: Sequence[Arm]) -> dict:
    """What a row over models says of the arms behind it: n_models, n_runs, remark, warning."""
    found = [arm for arm in group if arm.runs]
    lost, warned = len(group) - len(found), sum(bool(arm.warning) for arm in group)
    entries = set().union(*(arm.entries for arm in found))
    remark = [f"{lost} of {len(group)} models without pairs, not in the mean" if lost and found else ""]
    remark.append(few_entries(len(entries)))
    return {
        "n_entries": len(entries), "n_models": len(found), "n_runs": sum(len(arm.runs) for arm in found),
        "remark": said(remark), "warning": f"warnings for {warned} of {len(group)} models" if warned else "",
    }  # fmt: skip


def exploratory(table: pd.DataFrame, rows: pd.Series, why: str) -> pd.DataFrame:
    """A stamped table in which some rows are exploratory for a reason that its columns do not show."""
    notes = [said([note, why]) if row else note for note, row in zip(table["analysis_note"], rows, strict=True)]
    return table.assign(analysis=table["analysis"].mask(rows, "exploratory"), analysis_note=notes)
