"""Interactions of a structure with two factors at once: whether what a renderer changes depends on the placement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import NamedTuple

import pandas as pd

from .analysis_plan import planned_draws
from .clusters import NOTHING, Arm, Effect, exploratory, mean_effect, over_new_models, paired_arms, told
from .comparisons import ALL_MODELS
from .errors import InputError
from .estimands import ENTRY, MODEL, NEW_MODELS, THESE_MODELS
from .interactions import check_factor, score_columns, score_difference
from .intervals import LEVEL, bounded
from .outcomes import is_echo, sort_arms
from .pairing import said, shown_keys, with_numbers
from .resampling import check_draws
from .stamping import stamped

_MOST_PP = 400.0  # a difference of two interactions


def three_factor_interactions(
    results: pd.DataFrame,
    factors: Sequence[str] = ("renderer", "placement"),
    references: Mapping[str, str] | None = None,
    baseline: str = "flat",
    outcome: str | None = None,
    draws: int | None = None,
    seed: int | None = None,
) -> pd.DataFrame:
    """Whether the interaction of a structure with one factor differs between the levels of another.

    With d(a, b) the arm − baseline difference under level a of the first factor and b of the second, and 0 for the
    references, the estimate is [d(a, b) − d(0, b)] − [d(a, 0) − d(0, 0)], on the entries that are complete in all eight
    cells. It has the variance of eight cells: where a conditional effect needs n entries, it needs several times n, so
    'not shown' says little.

    Parameters
    ----------
    results : DataFrame
        One row per generation, with both factors crossed.
    factors : two of 'defence', 'renderer', 'placement', 'system_prompt'
    references : mapping of factor to level, optional
        Default: as in ``conditional_effects``.
    baseline, outcome, draws, seed
        As in ``conditional_effects``.

    Returns
    -------
    DataFrame
        One row per model × arm × pair of levels other than the references, then the same over models (each weighing the
        same) for both values of ``estimand``, as in ``conditional_effects``: ``difference_pp`` with ``low_pp``,
        ``high_pp`` (95 %) and ``interval`` (t over entries; over models a cluster bootstrap over entries, or t over
        models); ``mean_score_difference`` with ``mean_score_low``, ``mean_score_high``, ``mean_score_interval`` (t over
        entries or models); ``n_entries``, ``n_models``, ``n_runs``, ``unit``, ``remark``, ``warning``. Every row is
        exploratory.

    Raises
    ------
    InputError
        As ``conditional_effects``; factors that are not two different ones.
    """
    draws, seed = planned_draws(draws, seed)
    check_draws(draws, seed)
    if isinstance(factors, str) or len(factors := tuple(factors)) != 2 or factors[0] == factors[1]:
        raise InputError(f"factors must be two different ones such as ('renderer', 'placement'), got {factors!r}.")
    origin = tuple(check_factor(results, factor, (references or {}).get(factor)) for factor in factors)
    outcome = outcome or ("echo" if is_echo(results) else "failure")
    arms, keys = paired_arms(results, baseline, outcome)
    alike = [key for key in keys if key not in factors]
    found: dict[tuple, dict[tuple, Arm]] = {}
    for arm in arms:
        if arm.named["structure"] != baseline:  # an A/A arm is noise, see noise_floor
            cell = tuple(arm.named[factor] for factor in factors)
            found.setdefault(tuple(arm.named[key] for key in alike), {})[cell] = arm
    crossed = [
        _crossed(by_cell, cell, origin)
        for by_cell in found.values()
        for cell in by_cell
        if cell[0] != origin[0] and cell[1] != origin[1]
    ]
    rows = [_row(one) for one in crossed]
    groups: dict[tuple, list[_Crossed]] = {}
    for one in crossed:
        groups.setdefault(tuple(one.arm.named[key] for key in keys[1:]), []).append(one)
    for group in groups.values():
        rows += _over_models(group, draws, seed)
    if not rows:
        return stamped(pd.DataFrame(), results)
    table = pd.DataFrame(rows).assign(effect="three-factor interaction", baseline=baseline, outcome=outcome)
    table = table.assign(reference=", ".join(map(str, origin)))
    kept = [key for key in shown_keys(table, keys) if key not in factors]
    first = [*kept, *factors, "effect", "estimand", "baseline", "outcome", "reference"]
    order = sort_arms(table[["failure_type"]].assign(position=range(len(table))), ["failure_type", "position"])
    table = table.iloc[order["position"]].reset_index(drop=True)
    table = with_numbers(table[[*first, *[c for c in table if c not in (*first, *keys)]]])
    table = stamped(table, results, drawn=(draws, seed))
    return exploratory(table, pd.Series(True, table.index), "interactions are not planned")


class _Crossed(NamedTuple):
    """One model and arm under a pair of levels: the estimates, the arm on the entries of all eight cells, a remark."""

    arm: Arm
    pp: Effect
    score: Effect
    remark: str


def _crossed(by_cell: dict[tuple, Arm], cell: tuple, origin: tuple) -> _Crossed:
    (a, b), (a0, b0) = cell, origin
    corners = [(a, b), (a0, b), (a, b0), (a0, b0)]
    if lacking := [", ".join(map(str, corner)) for corner in corners if corner not in by_cell]:
        return _Crossed(by_cell[cell].within(set()), NOTHING, NOTHING, f"no such arm under {' and '.join(lacking)}")
    entries = set.intersection(*(by_cell[corner].entries for corner in corners))
    arms = [by_cell[corner].within(entries) for corner in corners]
    first = replace(arms[0], warning=said(arm.warning for arm in arms))
    if not entries:
        return _Crossed(first, NOTHING, NOTHING, "no entry is complete in all eight cells")

    def contrast(effects: list[Effect]) -> Effect:
        return (effects[0] - effects[1]) - (effects[2] - effects[3])

    return _Crossed(first, contrast([arm.difference for arm in arms]), contrast(list(map(score_difference, arms))), "")


def _row(one: _Crossed) -> dict:
    low, high, name = one.pp.interval()
    pp = {"difference_pp": one.pp.estimate} | _interval(*bounded(low, high, _MOST_PP), name)
    return (
        one.arm.named
        | pp
        | score_columns(one.score, one.score.interval())
        | {"estimand": THESE_MODELS, "unit": ENTRY, "n_entries": one.arm.n_entries, "n_models": 1}
        | {"n_runs": len(one.arm.runs), "remark": one.remark, "warning": one.arm.warning}
    )


def _over_models(group: list[_Crossed], draws: int, seed: int) -> list[dict]:
    found = [one for one in group if one.arm.runs]
    pp, score = (mean_effect([getattr(one, scale) for one in found]) for scale in ("pp", "score"))
    by_model = [
        over_new_models([getattr(one, scale).estimate for one in found], most=most)
        for scale, most in (("pp", _MOST_PP), ("score", inf))
    ]
    over_entries = pp.bootstrap(draws, seed, [LEVEL])[0], score.interval()
    return [
        group[0].arm.named
        | {"difference_pp": pp.estimate}
        | _interval(*of_pp)
        | score_columns(score, of_score)
        | {"model": ALL_MODELS, "estimand": estimand, "unit": unit}
        | told([one.arm for one in group])
        for estimand, unit, (of_pp, of_score) in ((THESE_MODELS, ENTRY, over_entries), (NEW_MODELS, MODEL, by_model))
    ]


def _interval(low: float, high: float, name: str) -> dict:
    return {"low_pp": low, "high_pp": high, "interval": name}
