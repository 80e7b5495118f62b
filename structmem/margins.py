"""Non-inferiority and equivalence: whether a structure is shown not to be worse than its baseline by a margin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan, nan
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from .analysis_plan import load_plan, stamped
from .clusters import Arm, Interval, exploratory, mean_effect, over_new_models, paired_arms, told
from .comparisons import ALL_MODELS
from .errors import InputError
from .estimands import ENTRY, MODEL, NEW_MODELS, THESE_MODELS
from .intervals import LEVEL
from .outcomes import is_echo, sort_arms
from .pairing import said, shown_keys, with_numbers
from .resampling import DRAWS, check_draws

if TYPE_CHECKING:
    from .analysis_plan import AnalysisPlan

ONE_SIDED = 0.90  # level of the two-sided interval whose ends are one-sided 95 % bounds
MARGINS_PP = (2, 5, 10)
NOT_SHOWN = "not shown"


@dataclass(frozen=True)
class Verdict:
    """What one-sided 95 % bounds of a difference (arm − baseline, pp) say about margins.

    ``worse_by`` is the bound on the side where the arm is worse, as a positive number of pp if it is worse.
    """

    lower_pp: float
    upper_pp: float
    bad: int = 1  # +1: a higher rate is worse

    @property
    def available(self) -> bool:
        return not (isnan(self.lower_pp) or isnan(self.upper_pp))

    @property
    def worse_by(self) -> float:
        return self.upper_pp if self.bad > 0 else -self.lower_pp

    @property
    def smallest_margin_pp(self) -> float:
        """Every margin above it passes; 0 where even 'not worse at all' is shown."""
        return max(self.worse_by, 0.0) if self.available else nan

    @property
    def smallest_equivalence_pp(self) -> float:
        """Both one-sided tests pass for every margin above it."""
        return max(abs(self.lower_pp), abs(self.upper_pp))

    def not_worse(self, margin_pp: float) -> str:
        """'not worse by more than 5 pp' or 'not shown'."""
        return self._words(self.worse_by < margin_pp, f"not worse by more than {margin_pp:g} pp")

    def equivalent(self, margin_pp: float) -> str:
        """'within ±5 pp' or 'not shown' (two one-sided tests: Schuirmann 1987, J Pharmacokinet Biopharm 15:657)."""
        return self._words(self.smallest_equivalence_pp < margin_pp, f"within ±{margin_pp:g} pp")

    def _words(self, shown: bool, what: str) -> str:
        return (what if shown else NOT_SHOWN) if self.available else "not available"

    def columns(self, margin_pp: float, reason: str) -> dict:
        """The columns that every table of margins has."""
        return (
            {"lower_bound_pp": self.lower_pp, "upper_bound_pp": self.upper_pp, "margin_pp": margin_pp}
            | {"verdict": self.not_worse(margin_pp), "equivalence": self.equivalent(margin_pp)}
            | {"smallest_margin_pp": self.smallest_margin_pp, "smallest_equivalence_pp": self.smallest_equivalence_pp}
            | {f"at_{m}_pp": self._words(self.worse_by < m, "passes") for m in MARGINS_PP}
            | {"margin_reason": reason}
        )


def margin_of(plan: AnalysisPlan, margin_pp: float | None = None) -> tuple[float, str]:
    """The margin in pp and its reason: the caller's number, else the plan's.

    Raises
    ------
    InputError
        For a margin outside (0, 100].
    """
    if margin_pp is None:
        return plan.margin_pp, plan.margin_reason
    if isinstance(margin_pp, bool) or not isinstance(margin_pp, (int, float)) or not 0 < margin_pp <= 100:
        raise InputError(f"margin_pp must be a number of percentage points in (0, 100], got {margin_pp!r}.")
    return float(margin_pp), "chosen in the call, not the plan's"


def verdict_over_models(differences_pp: Sequence[float], bad: int = 1) -> Verdict:
    """One-sided 95 % t bounds of the mean over models of one difference (arm − baseline, pp) per model.

    It assumes that the models are exchangeable draws. Bounds are NaN with one model or without variation.
    """
    return Verdict(*over_new_models(differences_pp, ONE_SIDED)[:2], bad)


def noninferiority(
    results: pd.DataFrame,
    failure_type: str = "beneficial_memory_usage",
    baseline: str = "flat",
    margin_pp: float | None = None,
    plan: AnalysisPlan | None = None,
    outcome: str | None = None,
    draws: int = DRAWS,
    seed: int = 0,
) -> pd.DataFrame:
    """Whether each arm is shown not to be worse than the baseline by more than a margin, and to be equivalent to it.

    Non-inferiority is shown where the one-sided 95 % bound on the worse side lies within the margin; equivalence where
    both bounds do (two one-sided tests at 5 %). 'Not shown' is not 'worse': it may be too few entries.

    Parameters
    ----------
    results : DataFrame
        One row per generation.
    failure_type, baseline : str
    margin_pp : float, optional
        In (0, 100]; default: the margin of the analysis plan, with its reason.
    plan : AnalysisPlan, optional
        As made by ``load_plan``, whose default is used else.
    outcome : 'failure', 'echo' or None
        As in ``paired_differences``. An echo is wanted in entries that need their memories: worse means fewer there.
    draws, seed : int
        Of the bootstrap.

    Returns
    -------
    DataFrame
        One row per model × arm, then per arm two rows 'all models', one per ``estimand``: 'these models, new entries'
        (mean over models, each weighing the same; cluster bootstrap over entries, as in ``pooled_differences``) and
        'new models' (t over models, assumed exchangeable). ``difference_pp`` = arm − baseline; ``low_pp``,
        ``high_pp``: two-sided 95 % ``interval``, as in the other tables (one model: Tango's for one run, t over entries
        for several); ``lower_bound_pp``, ``upper_bound_pp``: one-sided 95 % bounds, the ends of the two-sided 90 %
        interval of the same kind; ``margin_pp``; ``verdict`` ('not worse by more than 5 pp', 'not shown', 'not
        available'), ``equivalence`` ('within ±5 pp', 'not shown', 'not available'); ``smallest_margin_pp`` and
        ``smallest_equivalence_pp``: any larger margin passes; ``at_2_pp``, ``at_5_pp``, ``at_10_pp`` ('passes', 'not
        shown', 'not available'); ``margin_reason``; ``rate_baseline``, ``rate_arm`` in [0, 1]; ``n_entries`` (pairs of
        the smallest run; over models, entries with any pair), ``n_models``, ``n_runs``, ``unit``, ``remark``,
        ``warning``. A/A rows come first. With another margin or failure type than the plan's a row is exploratory.

    Raises
    ------
    InputError
        As ``paired_differences``; a failure type that the results lack; a margin outside (0, 100].
    """
    plan = plan or load_plan()
    margin, reason = margin_of(plan, margin_pp)
    outcome = outcome or ("echo" if is_echo(results) else "failure")
    arms, keys = paired_arms(results, baseline, outcome, failure_type)
    check_draws(draws, seed)
    rows = [_row(arm, margin, reason) for arm in arms]
    groups: dict[tuple, list[Arm]] = {}
    for arm in arms:
        groups.setdefault(tuple(arm.named[key] for key in keys[1:]), []).append(arm)
    for group in groups.values():
        rows += _over_models(group, margin, reason, draws, seed)
    if not rows:
        return stamped(pd.DataFrame(), results, plan)
    table = pd.DataFrame(rows)
    kept = shown_keys(table, keys)
    order = sort_arms(table[["failure_type"]].assign(position=range(len(table))), ["failure_type", "position"])
    table = table.iloc[order["position"]].reset_index(drop=True)
    table = with_numbers(table[[*kept, *[c for c in table if c not in keys]]])
    table = stamped(table, results, plan)
    every = pd.Series(True, table.index)
    if failure_type != plan.margin_failure_type:
        table = exploratory(table, every, f"the planned margin is for {plan.margin_failure_type}")
    if margin != plan.margin_pp:
        table = exploratory(table, every, f"margin {margin:g} pp, planned {plan.margin_pp:g}")
    return table


def _row(arm: Arm, margin: float, reason: str) -> dict:
    rows = {"unit": ENTRY, "n_entries": arm.n_entries, "n_models": 1, "n_runs": len(arm.runs)}
    lost = f"{arm.n_without_pairs} of {arm.n_without_pairs + len(arm.runs)} runs without pairs, not in the mean"
    remark = said([arm.remark, lost if arm.runs and arm.n_without_pairs else ""])
    rows |= {"remark": remark, "warning": arm.warning}
    effect, intervals = arm.difference.estimate, [arm.interval(level) for level in (LEVEL, ONE_SIDED)]
    return _numbers(arm, arm.rates, effect, intervals, margin, reason) | {"estimand": THESE_MODELS} | rows


def _over_models(group: list[Arm], margin: float, reason: str, draws: int, seed: int) -> list[dict]:
    found = [arm for arm in group if arm.runs]
    effect, levels = mean_effect([arm.difference for arm in found]), (LEVEL, ONE_SIDED)
    rates = {side: float(np.mean([arm.rates[side] for arm in found])) if found else nan for side in ("baseline", "arm")}
    differences = [arm.difference.estimate for arm in found]
    rows = []
    for estimand, unit, intervals in (
        (THESE_MODELS, ENTRY, effect.bootstrap(draws, seed, levels)),
        (NEW_MODELS, MODEL, [over_new_models(differences, level) for level in levels]),
    ):
        numbers = _numbers(group[0], rates, effect.estimate, intervals, margin, reason)
        rows.append(numbers | {"model": ALL_MODELS, "estimand": estimand, "unit": unit} | told(group))
    return rows


def _numbers(
    arm: Arm, rates: dict[str, float], difference: float, intervals: list[Interval], margin: float, reason: str
) -> dict:
    (low, high, interval), (lower, upper, _) = intervals
    return (
        arm.named
        | {"estimand": "", "baseline": arm.baseline, "outcome": arm.outcome}
        | {"rate_baseline": rates["baseline"], "rate_arm": rates["arm"]}
        | {"difference_pp": difference, "low_pp": low, "high_pp": high, "interval": interval}
        | Verdict(lower, upper, arm.bad).columns(margin, reason)
    )
