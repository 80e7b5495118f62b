"""Non-inferiority and equivalence: whether a structure is shown not to be worse than its baseline by a margin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import isnan, nan
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy import optimize, stats

from .analysis_plan import load_plan
from .clusters import Arm, Interval, exploratory, over_new_models, over_these_models, paired_arms, told
from .comparisons import ALL_MODELS
from .errors import InputError
from .estimands import ENTRY, MODEL, NEW_MODELS, THESE_MODELS
from .intervals import LEVEL
from .outcomes import is_echo, sort_arms
from .pairing import said, shown_keys, with_numbers
from .stamping import stamped

if TYPE_CHECKING:
    from .analysis_plan import AnalysisPlan

ONE_SIDED = 0.90  # level of the two-sided interval whose ends are one-sided 95 % bounds
MARGINS_PP = (2, 5, 10)
NOT_SHOWN = "not shown"
_FARTHEST = 7.0  # standard normal quantile beyond which a p-value (1e-12) says nothing more


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
        return max(self.worse_by, 0.0) + 0.0 if self.available else nan  # + 0.0: no negative zero

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
) -> pd.DataFrame:
    """Whether each arm is shown not to be worse than the baseline by more than a margin, and to be equivalent to it.

    Non-inferiority is shown where the one-sided 95 % bound on the worse side lies within the margin; equivalence where
    both bounds do (two one-sided tests at 5 %). 'Not shown' is not 'worse': it may be too few entries.

    The bounds for these models on new entries are Tango's for one model with one run, and else MOVER: the limits of
    every model and run, combined with their correlations over the entries that they share (``clusters.mover``, with
    sources). Where an arm is worse by exactly the margin, and 5 % is meant, 'not worse' is said in 4.4 % of tables of
    one model (most: 5.5 %), 3.8 % over models (most: 5.8 %) and 4.4 % with three runs of each (most: 6.6 %;
    ``benchmarks/type1.py``, 20 to 200 entries); percentiles of a bootstrap said it in 5.9 % (most: 8.9 %).

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

    Returns
    -------
    DataFrame
        One row per model × arm, then per arm two rows 'all models', one per ``estimand``: 'these models, new entries'
        (mean over models, each weighing the same, as is each run within its model) and 'new models' (t over models,
        assumed exchangeable). ``difference_pp`` = arm − baseline; ``low_pp``, ``high_pp``: two-sided 95 % ``interval``
        (``pooled_differences`` has the same difference with a bootstrap's); ``lower_bound_pp``, ``upper_bound_pp``:
        one-sided 95 % bounds, the ends of the two-sided 90 % interval of the same kind; ``margin_pp``; ``verdict``
        ('not worse by more than 5 pp', 'not shown', 'not available'), ``equivalence`` ('within ±5 pp', 'not shown',
        'not available'); ``smallest_margin_pp`` and ``smallest_equivalence_pp``: any larger margin passes; ``at_2_pp``,
        ``at_5_pp``, ``at_10_pp`` ('passes', 'not shown', 'not available'); ``margin_reason``; ``noninferiority_p``: the
        one-sided level at which the bound reaches the margin, for ``adjusted`` (each verdict is at 5 % by itself);
        ``rate_baseline``, ``rate_arm`` in [0, 1]; ``n_entries`` (pairs of the smallest run; over models, entries with
        any pair), ``n_models``, ``n_runs``, ``unit``, ``remark`` (also where a correlation cannot be estimated),
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
    rows = [_row(arm, margin, reason) for arm in arms]
    groups: dict[tuple, list[Arm]] = {}
    for arm in arms:
        groups.setdefault(tuple(arm.named[key] for key in keys[1:]), []).append(arm)
    for group in groups.values():
        rows += _over_models(group, margin, reason)
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
    numbers = _numbers(arm, arm.rates, arm.difference.estimate, partial(over_these_models, [arm]), margin, reason)
    return numbers | {"estimand": THESE_MODELS} | rows


def _over_models(group: list[Arm], margin: float, reason: str) -> list[dict]:
    found = [arm for arm in group if arm.runs]
    rates = {side: float(np.mean([arm.rates[side] for arm in found])) if found else nan for side in ("baseline", "arm")}
    differences = [arm.difference.estimate for arm in found]
    facts = told(group, bootstrap=False)
    rows = []
    for estimand, unit, over, values in (
        (THESE_MODELS, ENTRY, over_these_models, found),
        (NEW_MODELS, MODEL, over_new_models, differences),
    ):
        mean = float(np.mean(differences)) if found else nan
        numbers = _numbers(group[0], rates, mean, partial(over, values), margin, reason)
        remark = {"remark": said([facts["remark"], _unvaried(found) if unit == ENTRY else ""])}
        rows.append(numbers | {"model": ALL_MODELS, "estimand": estimand, "unit": unit} | facts | remark)
    return rows


def _unvaried(found: list[Arm]) -> str:
    """Words where some correlation cannot be estimated, so that the bounds are the cautious end of ``mover``."""
    cells = [arm.difference.cells for arm in found]
    if found and max(map(len, cells)) == 1:
        return "one entry"
    alike = sum(not np.nansum(np.abs(one.to_numpy(dtype=float))) for one in cells)
    if not alike:
        return ""
    return "no discordant pairs" + (f" in {alike} of {len(found)} models" if alike < len(found) else "")


def _numbers(
    arm: Arm, rates: dict[str, float], difference: float, at: Callable[[float], Interval], margin: float, reason: str
) -> dict:
    (low, high, interval), (lower, upper, _) = at(LEVEL), at(ONE_SIDED)
    return (
        arm.named
        | {"estimand": "", "baseline": arm.baseline, "outcome": arm.outcome}
        | {"rate_baseline": rates["baseline"], "rate_arm": rates["arm"]}
        | {"difference_pp": difference, "low_pp": low, "high_pp": high, "interval": interval}
        | Verdict(lower, upper, arm.bad).columns(margin, reason)
        | {"noninferiority_p": _p(at, margin, arm.bad)}
    )


def _p(at: Callable[[float], Interval], margin: float, bad: int) -> float:
    """One-sided p-value against the margin: the level at which the bound on the worse side just reaches it.

    Above one half, where the estimate itself lies beyond the margin, the other bound is the one that reaches it.
    """

    def beyond(z: float) -> float:
        lower, upper, _ = at(2 * float(stats.norm.cdf(abs(z))) - 1)
        worse, better = (upper, lower) if bad > 0 else (-lower, -upper)
        return (worse if z > 0 else better) - margin

    if isnan(beyond(1.0)):
        return nan
    ends = (1e-6, _FARTHEST) if beyond(1e-6) < 0 else (-_FARTHEST, -1e-6)
    at_ends = [beyond(z) for z in ends]
    if min(at_ends) > 0 or max(at_ends) < 0:  # the margin lies outside of what bounds can reach
        return float(stats.norm.sf(ends[0] if min(at_ends) > 0 else ends[1]))
    return float(stats.norm.sf(optimize.brentq(beyond, *ends, xtol=1e-4)))
