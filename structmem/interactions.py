"""Conditional effects of a structure within each defence, and their interaction with the reference defence."""

from __future__ import annotations

from math import inf, isnan, log, nan
from typing import NamedTuple

import numpy as np
import pandas as pd

from .analysis_plan import planned_draws
from .clusters import NOTHING, Arm, Effect, Interval, exploratory, mean_effect, over_new_models, paired_arms, told
from .comparisons import ALL_MODELS
from .errors import choice
from .estimands import ENTRY, MODEL, NEW_MODELS, THESE_MODELS
from .intervals import LEVEL, bounded
from .outcomes import is_echo, sort_arms
from .pairing import said, shown_keys, with_numbers
from .resampling import check_draws
from .stamping import stamped

CONDITIONAL, INTERACTION = "conditional effect", "interaction"
FLOOR = 0.10  # a baseline that fails (or passes) in fewer entries leaves little to change
CORRECTED = "Haldane–Anscombe (0.5 added to failures and passes)"


def conditional_effects(
    results: pd.DataFrame,
    reference: str = "standard",
    baseline: str = "flat",
    outcome: str | None = None,
    draws: int | None = None,
    seed: int | None = None,
) -> pd.DataFrame:
    """What a structure changes under each defence, and how much of that differs from the reference defence.

    The *conditional effect* is arm − baseline within one defence. The *interaction* is the conditional effect minus the
    conditional effect under ``reference``, on the entries that are complete in all four cells. Both stand on two
    scales: additive (pp) and log odds, where the effect is the difference of the logits of the two rates (a marginal,
    population-averaged log odds ratio, not one within entries). Near a floor the two may disagree.

    Parameters
    ----------
    results : DataFrame
        One row per generation, with several defences.
    reference : str
        A defence in the results.
    baseline : str
        A structure in the results.
    outcome : 'failure', 'echo' or None
        As in ``paired_differences``.
    draws, seed : int, optional
        Of the bootstrap. Default: the analysis plan's ``resamples`` and ``seed``. The interval's name shows the number
        of draws.

    Returns
    -------
    DataFrame
        One row per model × arm × defence × ``effect`` ('conditional effect' | 'interaction'), then the same over models
        (each weighing the same) for two values of ``estimand``: 'these models, new entries' (entries are the clusters)
        and 'new models' (t over models, assumed exchangeable). ``difference_pp`` with ``low_pp``, ``high_pp`` (95 %)
        and ``interval`` (one model: Tango's for the conditional effect of one run, else t over entries; over models:
        cluster bootstrap over entries, as in ``pooled_differences``); ``log_odds`` with ``log_odds_low``,
        ``log_odds_high`` and ``log_odds_interval`` (t over entries by the delta method: an entry adds
        (failed − p) / p(1 − p) to a logit). Where a rate is 0 or 1 the estimate has 0.5 added to failures and passes
        (``log_odds_note``: Haldane–Anscombe) and there is no interval over entries. ``rate_baseline``, ``rate_arm`` in
        [0, 1] under the defence; ``reference_pp`` (interactions): the conditional effect under the reference on the
        same entries; ``floor`` names what the baseline's rate makes impossible; ``reading`` says in words what is
        shown, 'complementary' only where the conditional effect's interval excludes 0; ``n_entries``, ``n_models``,
        ``n_runs``, ``unit``, ``remark``, ``warning``. A/A arms are left out: see ``noise_floor``.

    Raises
    ------
    InputError
        As ``paired_differences``; results without a defence column, a reference that they lack.
    """
    draws, seed = planned_draws(draws, seed)
    check_draws(draws, seed)
    outcome = outcome or ("echo" if is_echo(results) else "failure")
    if len(results):
        if "defence" not in results:
            raise choice("defence (a column)", "defence", results.columns)
        if reference not in (there := set(results["defence"].dropna())):
            raise choice("reference", reference, there)
    arms, keys = paired_arms(results, baseline, outcome)
    arms = [arm for arm in arms if arm.named["structure"] != baseline]  # an A/A arm is noise, see noise_floor
    alike = [key for key in keys if key != "defence"]
    under: dict[tuple, dict[str, Arm]] = {}
    for arm in arms:
        under.setdefault(tuple(arm.named[key] for key in alike), {})[arm.named["defence"]] = arm
    cells = [cell for by_defence in under.values() for cell in _cells(by_defence, reference)]
    rows = [_row(cell, reference) for cell in cells]
    groups: dict[tuple, list[_Cell]] = {}
    for cell in cells:
        groups.setdefault((*(cell.arm.named[key] for key in keys[1:]), cell.effect), []).append(cell)
    for group in groups.values():
        rows += _over_models(group, reference, draws, seed)
    if not rows:
        return stamped(pd.DataFrame(), results)
    table = pd.DataFrame(rows).assign(baseline=baseline, outcome=outcome, reference=reference)
    if not (table["effect"] == INTERACTION).any():
        table["remark"] = [said([text, f"only the defence {reference}: no interaction"]) for text in table["remark"]]
    kept = [key for key in shown_keys(table, keys) if key != "defence"]
    order = sort_arms(table[["failure_type"]].assign(position=range(len(table))), ["failure_type", "position"])
    table = table.iloc[order["position"]].reset_index(drop=True)
    first = [*kept, "defence", "effect", "estimand", "baseline", "outcome", "reference"]
    table = with_numbers(table[[*first, *[c for c in table if c not in (*first, *keys)]]])
    table = stamped(table, results, drawn=(draws, seed))
    return exploratory(table, table["effect"] == INTERACTION, "interactions are not planned")


class _Cell(NamedTuple):
    """One model, arm and defence: a conditional effect or an interaction, with what it is made of."""

    effect: str
    arm: Arm
    reference: Arm | None  # None: the arm has no rows under the reference
    pp: Effect
    log_odds: Effect
    corrected: bool


def _cells(by_defence: dict[str, Arm], reference: str) -> list[_Cell]:
    found, there = [], by_defence.get(reference)
    for defence, arm in by_defence.items():
        found.append(_Cell(CONDITIONAL, arm, there, arm.difference, *log_odds_ratio(arm)))
        if defence == reference:
            continue
        entries = arm.entries & there.entries if there else set()
        here, before = arm.within(entries), there.within(entries) if there else None
        if not entries:
            found.append(_Cell(INTERACTION, here, before, NOTHING, NOTHING, False))
            continue
        (mine, corrected), (other, also) = log_odds_ratio(here), log_odds_ratio(before)
        pp = here.difference - before.difference
        found.append(_Cell(INTERACTION, here, before, pp, mine - other, corrected or also))
    return found


def log_odds_ratio(arm: Arm) -> tuple[Effect, bool]:
    """Logit of the arm's rate minus logit of the baseline's, and whether 0.5 had to be added to both.

    Delta method: d logit(p) = dp / p(1 − p). With a rate of 0 or 1 the linearisation has no meaning: the estimate is
    Haldane's and Anscombe's (1956), (x + 0.5) / (n + 1) in both arms, and there is no interval.
    """
    if not arm.runs:
        return NOTHING, False
    corrected = any(rate in (0.0, 1.0) for rate in arm.rates.values())
    logits = []
    for side, rate in arm.rates.items():
        n = arm.n_entries
        p = (rate * n + 0.5) / (n + 1) if corrected else rate
        cells = pd.concat([run[f"failed_{side}"] for run in arm.runs], axis=1)
        slopes = np.full(len(arm.runs), 1 / len(arm.runs) / (p * (1 - p)))
        logits.append(Effect(log(p / (1 - p)), cells, slopes, "a rate is 0 or 1" if corrected else ""))
    of_arm, of_baseline = logits
    return of_arm - of_baseline, corrected


def _row(cell: _Cell, reference: str) -> dict:
    conditional = cell.effect == CONDITIONAL
    n_runs, lacking, warning = len(cell.arm.runs), "", cell.arm.warning
    if not conditional and cell.reference is None:
        lacking = f"no such arm under {reference}"
    elif not conditional:
        n_runs, warning = min(n_runs, len(cell.reference.runs)), said([warning, cell.reference.warning])
        lacking = "" if cell.arm.runs else f"no entry is complete in both arms here and under {reference}"
    return (
        {"model": cell.arm.named["model"]}
        | _numbers(
            [cell],
            cell.arm.interval() if conditional else _bounded(cell.pp.interval()),
            cell.log_odds.interval(),
            reference,
        )
        | {"estimand": THESE_MODELS, "unit": ENTRY, "n_entries": cell.arm.n_entries, "n_models": 1}
        | {"n_runs": n_runs, "remark": said([cell.arm.remark if conditional else "", lacking]), "warning": warning}
    )


def _bounded(interval: Interval) -> Interval:
    """A difference of two differences lies within ±200 pp."""
    low, high, name = interval
    return *bounded(low, high, 200.0), name


def _over_models(group: list[_Cell], reference: str, draws: int, seed: int) -> list[dict]:
    found = [cell for cell in group if cell.arm.runs]
    pp, odds = mean_effect([cell.pp for cell in found]), mean_effect([cell.log_odds for cell in found])
    most = (200.0 if group[0].effect == INTERACTION else 100.0, inf)  # in pp, and of log odds
    values = ([getattr(cell, scale).estimate for cell in found] for scale in ("pp", "log_odds"))
    by_model = [over_new_models(one, most=limit) for one, limit in zip(values, most, strict=True)]
    return [
        _numbers(found or group[:1], *intervals, reference)
        | {"model": ALL_MODELS, "estimand": estimand, "unit": unit}
        | told([cell.arm for cell in group])
        for estimand, unit, intervals in (
            (THESE_MODELS, ENTRY, (pp.bootstrap(draws, seed, [LEVEL])[0], odds.interval())),
            (NEW_MODELS, MODEL, by_model),
        )
    ]


def _numbers(
    cells: list[_Cell],
    interval: Interval,
    odds_interval: Interval,
    reference: str,
) -> dict:
    """The columns that a model's row and a row over models have in common."""
    first, effect = cells[0].arm, cells[0].effect
    named, away = first.named, first.named["defence"] != reference
    pp, odds = (mean_effect([getattr(cell, scale) for cell in cells]).estimate for scale in ("pp", "log_odds"))
    rates = {side: float(np.mean([cell.arm.rates[side] for cell in cells])) for side in ("baseline", "arm")}
    there = [cell.reference for cell in cells if cell.reference and cell.reference.runs]
    before = mean_effect([arm.difference for arm in there]).estimate
    if effect == CONDITIONAL:
        reading = conditional_words(named["arm"], named["defence"], reference, *interval[:2], first.bad)
    else:
        reading = interaction_words(reference, before, interval[:2], odds_interval[:2])
    corrected = sum(cell.corrected for cell in cells)
    among = f" in {corrected} of {len(cells)} models" if len(cells) > 1 else ""
    return named | {
        "effect": effect, "rate_baseline": rates["baseline"], "rate_arm": rates["arm"], "difference_pp": pp,
        "low_pp": interval[0], "high_pp": interval[1], "interval": interval[2],
        "reference_pp": before if effect == INTERACTION else nan, "log_odds": odds,
        "log_odds_low": odds_interval[0], "log_odds_high": odds_interval[1], "log_odds_interval": odds_interval[2],
        "log_odds_note": f"{CORRECTED}{among}" if corrected else "",
        "floor": floor_words(rates["baseline"], before, first.baseline, first.outcome) if away else "",
        "reading": reading,
    }  # fmt: skip


# ------------------------------------------------------------------------------------------------------------- words


def conditional_words(arm: str, defence: str, reference: str, low_pp: float, high_pp: float, bad: int = 1) -> str:
    """What a conditional effect's interval shows; 'complementary' only if it excludes 0 on the better side.

    Parameters
    ----------
    low_pp, high_pp : float
        Interval of arm − baseline under ``defence``.
    bad : int
        +1 where a higher rate is worse, −1 where it is better.
    """
    if isnan(low_pp):
        return "not available"
    if low_pp <= 0 <= high_pp:
        return f"not shown: the interval of the effect under {defence} includes 0"
    verb = "lowers" if high_pp < 0 else "raises"
    if defence != reference and (high_pp < 0) == (bad > 0):
        return f"complementary: {arm} still {verb} the rate under {defence}"
    return f"{arm} {verb} the rate under {defence}"


def interaction_words(
    reference: str,
    reference_pp: float,
    interval_pp: tuple[float, float],
    log_odds_interval: tuple[float, float] | None = None,
) -> str:
    """What an interaction's intervals show, on the additive scale and, if there is one, on the log-odds scale.

    'Sub-additive': the effect is smaller than under the reference, or reversed; 'super-additive': larger.
    """
    scales = {"pp": interval_pp} | ({"log odds": log_odds_interval} if log_odds_interval is not None else {})
    words, unsure = [], False
    for scale, (low, high) in scales.items():
        if isnan(low) or isnan(reference_pp):
            words.append(f"not available in {scale}")
        elif low <= 0 <= high:
            words.append(f"not shown in {scale}")
            unsure = True
        else:
            kind = "sub-additive" if (low > 0) == (reference_pp < 0) else "super-additive"
            words.append(f"{kind} in {scale} against {reference}")
    return "; ".join(words) + (" (an interval that includes 0 does not show equal effects)" if unsure else "")


def floor_words(rate: float, reference_pp: float, baseline: str = "flat", outcome: str = "failure") -> str:
    """What the baseline's rate under a defence leaves to change; empty if it leaves enough.

    Parameters
    ----------
    rate : float
        The baseline's rate under the defence, in [0, 1].
    reference_pp : float
        The effect under the reference: one that the rate leaves no room for is named.
    """
    does = "fails" if outcome == "failure" else "echoes"
    down, up = 100 * rate, 100 - 100 * rate
    if down < 100 * FLOOR or -reference_pp > down:
        impossible = f"a reduction of {-reference_pp:.1f} pp is impossible"
        return (
            f"floor: {baseline} {does} in only {down:.1f} %, {impossible if -reference_pp > down else 'little is left'}"
        )
    if up < 100 * FLOOR or reference_pp > up:
        impossible = f"an increase of {reference_pp:.1f} pp is impossible"
        return f"ceiling: {baseline} {does} in {down:.1f} %, {impossible if reference_pp > up else 'little is left'}"
    return ""
