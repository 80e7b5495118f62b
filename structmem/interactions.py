"""Conditional effects of a structure at each level of a factor (defence, renderer, …), and their interactions."""

from __future__ import annotations

from math import inf, isnan, log, nan
from typing import NamedTuple

import numpy as np
import pandas as pd

from .analysis_plan import planned_draws
from .clusters import NOTHING, Arm, Effect, Interval, exploratory, mean_effect, over_new_models, paired_arms, told
from .columns import check_table
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
# Settings that an arm and its baseline share, with the level that others are compared with unless another is named.
FACTORS = {"defence": "standard", "renderer": "markdown", "placement": "system", "system_prompt": "short"}


def conditional_effects(
    results: pd.DataFrame,
    reference: str | None = None,
    baseline: str = "flat",
    outcome: str | None = None,
    draws: int | None = None,
    seed: int | None = None,
    *,
    factor: str = "defence",
) -> pd.DataFrame:
    """What a structure changes under each level of a factor, and how much of that differs from the reference level.

    The *conditional effect* is arm − baseline within one level, for example one defence. The *interaction* is the
    conditional effect minus the conditional effect under ``reference``, on the entries that are complete in all four
    cells. Both stand on three scales: the rate in pp, its log odds, where the effect is the difference of the logits of
    the two rates (a marginal, population-averaged log odds ratio, not one within entries; near a floor it may disagree
    with pp), and the mean score (echo: the mean overlap), which moves where no outcome crosses the threshold.

    Parameters
    ----------
    results : DataFrame
        One row per generation, with several levels of the factor. Other settings that differ make rows of their own.
    reference : str, optional
        A level in the results; default: 'standard', 'markdown', 'system' or 'short', by the factor.
    baseline : str
        A structure in the results.
    outcome : 'failure', 'echo' or None
        As in ``paired_differences``.
    draws, seed : int, optional
        Of the bootstrap. Default: the analysis plan's ``resamples`` and ``seed``. The interval's name shows the number
        of draws.
    factor : 'defence', 'renderer', 'placement' or 'system_prompt'
        A setting that an arm and its baseline share.

    Returns
    -------
    DataFrame
        One row per model × arm × level (in a column named for the factor) × ``effect`` ('conditional effect' |
        'interaction'), then the same over models (each weighing the same) for two values of ``estimand``: 'these
        models, new entries' (entries are the clusters) and 'new models' (t over models, assumed exchangeable).
        ``difference_pp`` with ``low_pp``, ``high_pp`` (95 %) and ``interval`` (one model: Tango's for the conditional
        effect of one run, else t over entries; over models: cluster bootstrap over entries, as in
        ``pooled_differences``); ``log_odds`` with ``log_odds_low``, ``log_odds_high`` and ``log_odds_interval`` (t over
        entries by the delta method: an entry adds (failed − p) / p(1 − p) to a logit). Where a rate is 0 or 1 the
        estimate has 0.5 added to failures and passes (``log_odds_note``: Haldane–Anscombe) and there is no interval
        over entries. ``mean_score_difference``, in points of the scale (echo: of the overlap, in [0, 1]), with
        ``mean_score_low``, ``mean_score_high`` and ``mean_score_interval`` (t over entries, or over models).
        ``rate_baseline``, ``rate_arm`` in [0, 1] under the level; ``reference_pp`` (interactions): the conditional
        effect under the reference on the same entries; ``floor`` names what the baseline's rate makes impossible;
        ``reading`` says in words what is shown in pp and log odds, 'complementary' only for a defence and where the
        conditional effect's interval excludes 0; ``n_entries``, ``n_models``, ``n_runs``, ``unit``, ``factor``,
        ``remark``, ``warning``. A/A arms are left out: see ``noise_floor``.

    Raises
    ------
    InputError
        As ``paired_differences``; a factor that is none, results without its column, a reference that they lack.
    """
    reference = check_factor(results, factor, reference)
    draws, seed = planned_draws(draws, seed)
    check_draws(draws, seed)
    outcome = outcome or ("echo" if is_echo(results) else "failure")
    arms, keys = paired_arms(results, baseline, outcome)
    arms = [arm for arm in arms if arm.named["structure"] != baseline]  # an A/A arm is noise, see noise_floor
    alike = [key for key in keys if key != factor]
    under: dict[tuple, dict[str, Arm]] = {}
    for arm in arms:
        under.setdefault(tuple(arm.named[key] for key in alike), {})[arm.named[factor]] = arm
    cells = [cell for by_level in under.values() for cell in _cells(by_level, factor, reference)]
    rows = [_row(cell) for cell in cells]
    groups: dict[tuple, list[_Cell]] = {}
    for cell in cells:
        groups.setdefault((*(cell.arm.named[key] for key in keys[1:]), cell.effect), []).append(cell)
    for group in groups.values():
        rows += _over_models(group, draws, seed)
    if not rows:
        return stamped(pd.DataFrame(), results)
    table = pd.DataFrame(rows).assign(baseline=baseline, outcome=outcome, reference=reference, factor=factor)
    if not (table["effect"] == INTERACTION).any():
        table["remark"] = [
            said([text, f"only the {factor.replace('_', ' ')} {reference}: no interaction"]) for text in table["remark"]
        ]
    kept = [key for key in shown_keys(table, keys) if key != factor]
    order = sort_arms(table[["failure_type"]].assign(position=range(len(table))), ["failure_type", "position"])
    table = table.iloc[order["position"]].reset_index(drop=True)
    first = [*kept, factor, "effect", "estimand", "baseline", "outcome", "reference"]
    table = with_numbers(table[[*first, *[c for c in table if c not in (*first, *keys)]]])
    table = stamped(table, results, drawn=(draws, seed))
    return exploratory(table, table["effect"] == INTERACTION, "interactions are not planned")


def check_factor(results: pd.DataFrame, factor: str, reference: str | None = None) -> str:
    """The reference level of a factor, or an error that says which factors and levels there are."""
    if factor not in FACTORS:
        raise choice("factor", factor, FACTORS)
    reference = FACTORS[factor] if reference is None else reference
    check_table(results)
    if len(results):
        if factor not in results:
            raise choice(f"{factor} (a column)", factor, results.columns)
        if reference not in (there := set(results[factor].dropna())):
            raise choice("reference", reference, there)
    return reference


class _Cell(NamedTuple):
    """One model, arm and level: a conditional effect or an interaction, with what it is made of."""

    effect: str
    factor: str
    reference: str
    arm: Arm
    before: Arm | None  # under the reference; None: the arm has no rows there
    pp: Effect
    score: Effect
    log_odds: Effect
    corrected: bool


def _cells(by_level: dict[str, Arm], factor: str, reference: str) -> list[_Cell]:
    found, there = [], by_level.get(reference)
    for level, arm in by_level.items():
        odds = log_odds_ratio(arm)
        found.append(_Cell(CONDITIONAL, factor, reference, arm, there, arm.difference, score_difference(arm), *odds))
        if level == reference:
            continue
        entries = arm.entries & there.entries if there else set()
        here, before = arm.within(entries), there.within(entries) if there else None
        if not entries:
            nothing = (NOTHING, NOTHING, NOTHING, False)
            found.append(_Cell(INTERACTION, factor, reference, here, before, *nothing))
            continue
        (mine, corrected), (other, also) = log_odds_ratio(here), log_odds_ratio(before)
        pp, score = here.difference - before.difference, score_difference(here) - score_difference(before)
        of_both = (pp, score, mine - other, corrected or also)
        found.append(_Cell(INTERACTION, factor, reference, here, before, *of_both))
    return found


def score_difference(arm: Arm) -> Effect:
    """Mean score (echo: overlap) of the arm minus the baseline's, each run weighing the same."""
    if not arm.runs:
        return NOTHING
    gaps = [run["mean_value_arm"] - run["mean_value_baseline"] for run in arm.runs]
    if any(gap.isna().any() for gap in gaps):
        return Effect(nan, pd.DataFrame(), np.array([]), "no scores")
    weights = np.full(len(gaps), 1 / len(gaps))
    return Effect(float(weights @ [gap.mean() for gap in gaps]), pd.concat(gaps, axis=1), weights)


def score_columns(effect: Effect, interval: Interval) -> dict:
    """The columns of a difference of mean scores."""
    names = ("mean_score_difference", "mean_score_low", "mean_score_high", "mean_score_interval")
    return dict(zip(names, (effect.estimate, *interval), strict=True))


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


def _row(cell: _Cell) -> dict:
    conditional = cell.effect == CONDITIONAL
    n_runs, lacking, warning = len(cell.arm.runs), "", cell.arm.warning
    if not conditional and cell.before is None:
        lacking = f"no such arm under {cell.reference}"
    elif not conditional:
        n_runs, warning = min(n_runs, len(cell.before.runs)), said([warning, cell.before.warning])
        lacking = "" if cell.arm.runs else f"no entry is complete in both arms here and under {cell.reference}"
    return (
        {"model": cell.arm.named["model"]}
        | _numbers(
            [cell],
            cell.arm.interval() if conditional else _bounded(cell.pp.interval()),
            cell.log_odds.interval(),
            cell.score.interval(),
        )
        | {"estimand": THESE_MODELS, "unit": ENTRY, "n_entries": cell.arm.n_entries, "n_models": 1}
        | {"n_runs": n_runs, "remark": said([cell.arm.remark if conditional else "", lacking]), "warning": warning}
    )


def _bounded(interval: Interval) -> Interval:
    """A difference of two differences lies within ±200 pp."""
    low, high, name = interval
    return *bounded(low, high, 200.0), name


def _over_models(group: list[_Cell], draws: int, seed: int) -> list[dict]:
    found = [cell for cell in group if cell.arm.runs]
    pp, odds, score = (mean_effect([getattr(cell, scale) for cell in found]) for scale in ("pp", "log_odds", "score"))
    most = (200.0 if group[0].effect == INTERACTION else 100.0, inf, inf)  # in pp, of log odds, of scores
    values = ([getattr(cell, scale).estimate for cell in found] for scale in ("pp", "log_odds", "score"))
    by_model = [over_new_models(one, most=limit) for one, limit in zip(values, most, strict=True)]
    return [
        _numbers(found or group[:1], *intervals)
        | {"model": ALL_MODELS, "estimand": estimand, "unit": unit}
        | told([cell.arm for cell in group])
        for estimand, unit, intervals in (
            (THESE_MODELS, ENTRY, (pp.bootstrap(draws, seed, [LEVEL])[0], odds.interval(), score.interval())),
            (NEW_MODELS, MODEL, by_model),
        )
    ]


def _numbers(cells: list[_Cell], interval: Interval, odds_interval: Interval, score_interval: Interval) -> dict:
    """The columns that a model's row and a row over models have in common."""
    first, effect, factor = cells[0].arm, cells[0].effect, cells[0].factor
    named, away = first.named, first.named[factor] != cells[0].reference
    level, reference = (level_words(factor, name) for name in (named[factor], cells[0].reference))
    pp, odds = (mean_effect([getattr(cell, scale) for cell in cells]).estimate for scale in ("pp", "log_odds"))
    score = score_columns(mean_effect([cell.score for cell in cells]), score_interval)
    rates = {side: float(np.mean([cell.arm.rates[side] for cell in cells])) for side in ("baseline", "arm")}
    there = [cell.before for cell in cells if cell.before and cell.before.runs]
    before = mean_effect([arm.difference for arm in there]).estimate
    if effect == CONDITIONAL:
        # A layout that still helps adds to an instruction; to a renderer it does not.
        before_it = reference if factor == "defence" else level
        reading = conditional_words(named["arm"], level, before_it, *interval[:2], first.bad)
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
        **score,
        "floor": floor_words(rates["baseline"], before, first.baseline, first.outcome) if away else "",
        "reading": reading,
    }  # fmt: skip


# ------------------------------------------------------------------------------------------------------------- words


def level_words(factor: str, level: str) -> str:
    """A level as sentences name it: defences by their name, others with their factor."""
    return str(level) if factor == "defence" else f"{factor.replace('_', ' ')} {level}"


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

    'Sub-additive': the effect is smaller than under the reference, or reversed; 'super-additive': larger. Against an
    effect of 0 it is neither.
    """
    scales = {"pp": interval_pp} | ({"log odds": log_odds_interval} if log_odds_interval is not None else {})
    words, unsure = [], False
    for scale, (low, high) in scales.items():
        if isnan(low) or isnan(reference_pp):
            words.append(f"not available in {scale}")
        elif low <= 0 <= high:
            words.append(f"not shown in {scale}")
            unsure = True
        elif reference_pp == 0:
            words.append(f"{'above' if low > 0 else 'below'} the effect under {reference} in {scale}")
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
