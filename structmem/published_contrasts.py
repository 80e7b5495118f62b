"""What the published per-model rates support: contrasts of any two cells over models, all of them descriptive."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy import stats
from scipy.special import logit

from .analysis_plan import load_plan
from .data import FAILURE_TYPES
from .errors import InputError, choice
from .interactions import CONDITIONAL, CORRECTED, INTERACTION, conditional_words, floor_words, interaction_words
from .intervals import over_models
from .margins import margin_of, verdict_over_models
from .published import DESCRIPTIVE, grid, over_models_row, published_rate, rate_cells

_PAIRS = (
    ("dynamic", "flat"), ("fixed", "flat"), ("tree", "flat"),
    ("dynamic", "fixed"), ("dynamic", "tree"), ("fixed", "tree"),
)  # fmt: skip
_STANDARD = "standard"
_NEW_MODELS = {"interval": "t over models, assumed exchangeable", "estimand": "new models", "unit": "model"}
# A structure can take away at most what flat has, and add at most what is left: in pp little moves beyond these.
_FLOOR, _CEILING = 0.10, 0.90


def published_differences(defence: str = _STANDARD, failure_type: str = "cross_domain") -> pd.DataFrame:
    """Differences of published rates between every two structures under one defence, over the seven models.

    Parameters
    ----------
    defence, failure_type : str
        Which cells are compared.

    Returns
    -------
    DataFrame
        One row per pair of structures: ``rate_baseline`` and ``rate_arm`` (means over models, in [0, 1]),
        ``difference_pp`` = arm − baseline, ``reduction_pp``, ``sd_pp`` (n − 1), ``low_pp``, ``high_pp`` (95 % t
        interval over models), ``n_models``, ``n_models_down``, ``n_models_up``; two-sided ``t_p``, ``wilcoxon_p`` and
        ``sign_flip_p`` (exact), ``smallest_p`` (the smallest that the exact tests can reach), and ``holm_p``: ``t_p``
        adjusted by Holm's method within ``family`` (the structures against flat, or the structures among themselves;
        ``n_family`` of them). ``remark`` names models at the floor or ceiling, where little can change.

    Raises
    ------
    InputError
        For a defence or failure type that was not published.
    """
    rows = []
    for arm, baseline in _pairs(defence, failure_type):
        family = "structures against flat" if baseline == "flat" else "structures among themselves"
        named = {"arm": arm, "baseline": baseline, "defence": defence, "failure_type": failure_type}
        compared = _compared((arm, defence), (baseline, defence), failure_type)
        rows.append(named | compared | _NEW_MODELS | {"family": family})
    return _with_holm(pd.DataFrame(rows))


def published_leave_one_out(defence: str = _STANDARD, failure_type: str = "cross_domain") -> pd.DataFrame:
    """The differences of `published_differences` again, each time without one of the models.

    Returns
    -------
    DataFrame
        One row per pair of structures × ``left_out`` model: ``difference_pp``, ``low_pp``, ``high_pp`` (95 % t interval
        over the models that stay), ``n_models``, ``t_p``, ``sign_flip_p``, ``smallest_p``; not adjusted.
    """
    kept = ["difference_pp", "low_pp", "high_pp", "n_models", "t_p", "sign_flip_p", "smallest_p"]
    rows = []
    for arm, baseline in _pairs(defence, failure_type):
        named = {"arm": arm, "baseline": baseline, "defence": defence, "failure_type": failure_type}
        for model in published_rate(arm, defence, failure_type).index:
            compared = _compared((arm, defence), (baseline, defence), failure_type, without=model)
            rows.append(named | {"left_out": model} | {name: compared[name] for name in kept} | _NEW_MODELS)
    return pd.DataFrame(rows).assign(**DESCRIPTIVE)


def published_contrast(
    arm: tuple[str, str] = ("flat", "rubric_informed"), baseline: tuple[str, str] = ("dynamic", _STANDARD)
) -> pd.DataFrame:
    """Published rates of any two cells, each a structure under a defence: is an instruction as good as a layout?

    Parameters
    ----------
    arm, baseline : (structure, defence)

    Returns
    -------
    DataFrame
        One row per failure type that both have, with the columns of `published_differences`; p-values not adjusted.

    Raises
    ------
    InputError
        For what is no pair, and a structure or defence that was not published.
    """
    for name, cell in {"arm": arm, "baseline": baseline}.items():
        if not isinstance(cell, (tuple, list)) or len(cell) != 2:
            raise InputError(f"{name} must be a pair such as ('flat', 'rubric_informed'), got {cell!r}.")
    kinds = [set(published_rate(*cell).index.get_level_values("failure_type")) for cell in (arm, baseline)]
    rows = []
    for kind in FAILURE_TYPES:
        if kind in kinds[0] & kinds[1]:
            named = {"arm": ", ".join(arm), "baseline": ", ".join(baseline), "failure_type": kind}
            rows.append(named | _compared(arm, baseline, kind) | _NEW_MODELS)
    return pd.DataFrame(rows).assign(**DESCRIPTIVE)


def published_conditional_effects(structure: str = "dynamic", failure_type: str = "cross_domain") -> pd.DataFrame:
    """Effect of a structure against flat within each defence: what it adds to the instruction.

    Returns
    -------
    DataFrame
        One row per defence other than 'standard', with the columns of `published_differences` (the family is the
        defences) and ``reading``: 'complementary' only if the 95 % interval lies below 0. The interval is not adjusted
        for the number of defences; ``holm_p`` is.

    Raises
    ------
    InputError
        For a structure or failure type that was not published under another defence than 'standard'.
    """
    rows = []
    for defence in _defences(structure, failure_type):
        compared = _compared((structure, defence), ("flat", defence), failure_type)
        named = {"arm": structure, "baseline": "flat", "defence": defence, "failure_type": failure_type}
        reading = conditional_words(structure, defence, _STANDARD, compared["low_pp"], compared["high_pp"])
        family = f"effects of {structure} within a defence"
        rows.append(
            named | {"effect": CONDITIONAL} | compared | {"reading": reading} | _NEW_MODELS | {"family": family}
        )
    return _with_holm(pd.DataFrame(rows))


def published_interactions(structure: str = "dynamic", failure_type: str = "cross_domain") -> pd.DataFrame:
    """Effect of a structure within a defence minus its effect under 'standard', in pp and in log odds.

    In pp an effect shrinks wherever flat leaks less to begin with; log odds have no such floor, so both stand side by
    side. Above 0, two benefits add up to less than their sum.

    Returns
    -------
    DataFrame
        One row per defence other than 'standard': ``difference_pp``, the interaction, with ``low_pp``, ``high_pp``
        (95 % t interval over models), ``sd_pp``, ``n_models``, ``n_models_down``, ``n_models_up``, ``t_p``,
        ``holm_p`` (over the defences), ``wilcoxon_p``, ``sign_flip_p``, ``smallest_p``; ``effect_pp`` and
        ``reference_pp``, the effects within the defence and under 'standard'; ``log_odds``, ``log_odds_low``,
        ``log_odds_high``, ``log_odds_p``: the same contrast of logits, with ``log_odds_note`` where a rate of 0 or 1
        made a correction necessary; ``reading`` on both scales, by the intervals; ``floor`` names what flat's mean
        rate makes impossible, ``remark`` the models at the floor or ceiling.

    Raises
    ------
    InputError
        As `published_conditional_effects`.
    """
    rows = []
    reference = _differences((structure, _STANDARD), ("flat", _STANDARD), failure_type)
    reference_logits = _logits(structure, _STANDARD, failure_type)
    for defence in _defences(structure, failure_type):
        within = _differences((structure, defence), ("flat", defence), failure_type)
        logits = _logits(structure, defence, failure_type)
        over = over_models_row(within - reference)
        odds = over_models(logits["log_odds"] - reference_logits["log_odds"])
        corrected = int((logits["corrected"] | reference_logits["corrected"]).sum())
        bounds = (over["low_pp"], over["high_pp"]), (odds.low, odds.high)
        flat = published_rate("flat", defence, failure_type)
        rows.append(
            {"arm": structure, "baseline": "flat", "defence": defence, "failure_type": failure_type}
            | {"effect": INTERACTION, "effect_pp": within.mean(), "reference_pp": reference.mean()}
            | {"difference_pp": (within - reference).mean(), **over}
            | {"log_odds": odds.mean, "log_odds_low": odds.low, "log_odds_high": odds.high, "log_odds_p": odds.t_p}
            | {"log_odds_note": f"{CORRECTED} in {corrected} of {len(within)} models" if corrected else ""}
            | {"reading": interaction_words(_STANDARD, reference.mean(), *bounds)}
            | {"floor": floor_words(flat.mean(), reference.mean()), "remark": _at_the_edge(flat)}
            | _NEW_MODELS
            | {"family": f"interactions of {structure} with a defence"}
        )
    return _with_holm(pd.DataFrame(rows))


def published_noninferiority(
    margin_pp: float | None = None, defence: str = _STANDARD, failure_type: str = "beneficial_memory_usage"
) -> pd.DataFrame:
    """Whether each structure is shown to keep its failure rate within a margin of flat's, over the seven models.

    Parameters
    ----------
    margin_pp : float, optional
        How many pp more failures would still count as maintained; default: the margin of the analysis plan.

    Returns
    -------
    DataFrame
        One row per structure: ``difference_pp`` = structure − flat; ``lower_bound_pp``, ``upper_bound_pp``, one-sided
        95 % t bounds over models, which are taken as exchangeable; and ``margin_pp``, ``verdict``, ``equivalence``,
        ``smallest_margin_pp`` …, as in ``noninferiority``; ``noninferiority_p``: one-sided t test against the margin;
        ``worst_model`` and its ``worst_difference_pp``: passing on average does not say that every model passes.

    Raises
    ------
    InputError
        For a margin outside (0, 100], or what was not published.
    """
    margin, reason = margin_of(load_plan(), margin_pp)
    rows = []
    for arm in [arm for arm, baseline in _pairs(defence, failure_type) if baseline == "flat"]:
        rates = {"baseline": ("flat", defence, failure_type), "arm": (arm, defence, failure_type)}
        apart = _differences((arm, defence), ("flat", defence), failure_type)
        rows.append(
            {"arm": arm, "baseline": "flat", "defence": defence, "failure_type": failure_type}
            | {f"rate_{side}": published_rate(*cell).mean() for side, cell in rates.items()}
            | {"difference_pp": apart.mean()}
            | verdict_over_models(apart).columns(margin, reason)
            | {"noninferiority_p": float(stats.ttest_1samp(apart, margin, alternative="less").pvalue)}
            | {"worst_model": apart.idxmax(), "worst_difference_pp": apart.max(), "n_models": len(apart)}
            | {**_NEW_MODELS, "interval": "one-sided 95 % t bounds over models, assumed exchangeable"}
        )
    return pd.DataFrame(rows).assign(**DESCRIPTIVE)


def published_dominance(defence: str = _STANDARD) -> pd.DataFrame:
    """Which of two structures is better in leakage and in beneficial failures at once, model by model.

    One structure dominates another in a model if neither of its two published rates is higher and one is lower.
    These are point estimates: no interval stands behind a single model's verdict.

    Returns
    -------
    DataFrame
        One row per pair of structures × model: ``leakage_difference_pp``, ``beneficial_difference_pp`` (arm − baseline)
        and ``dominates``: the structure's name, or 'neither'.
    """
    rows = []
    for arm, baseline in _pairs(defence, "cross_domain"):
        cells = (arm, defence), (baseline, defence)
        leaks, uses = (_differences(*cells, kind) for kind in ("cross_domain", "beneficial_memory_usage"))
        for model in leaks.index:
            pair = (leaks[model], uses[model])
            better = max(pair) <= 0 and min(pair) < 0, min(pair) >= 0 and max(pair) > 0
            dominates = arm if better[0] else baseline if better[1] else "neither"
            named = {"arm": arm, "baseline": baseline, "model": model, "defence": defence}
            differences = {"leakage_difference_pp": pair[0], "beneficial_difference_pp": pair[1]}
            rows.append(named | differences | {"dominates": dominates})
    return pd.DataFrame(rows).assign(**DESCRIPTIVE)


def _pairs(defence: str, failure_type: str) -> list[tuple[str, str]]:
    """Pairs of structures that were both published under a defence."""
    published_rate("flat", defence, failure_type)  # refuses what was not published
    there = {of for of, under, kind in rate_cells() if (under, kind) == (defence, failure_type)}
    return [pair for pair in _PAIRS if there.issuperset(pair)]


def _differences(arm: tuple, baseline: tuple, failure_type: str) -> pd.Series:
    """Arm − baseline in pp, one value per model; rounded so that equal published rates differ by exactly 0."""
    return (100 * (published_rate(*arm, failure_type) - published_rate(*baseline, failure_type))).round(9)


def _compared(arm: tuple, baseline: tuple, failure_type: str, without: str | None = None) -> dict:
    rates = [published_rate(*cell, failure_type) for cell in (baseline, arm)]
    apart = _differences(arm, baseline, failure_type)
    if without:
        rates, apart = [each.drop(without) for each in rates], apart.drop(without)
    means = {"rate_baseline": rates[0].mean(), "rate_arm": rates[1].mean()}
    difference = {"difference_pp": apart.mean(), "reduction_pp": 0.0 - apart.mean()}
    return means | difference | over_models_row(apart) | {"remark": _at_the_edge(rates[0])}


def _logits(structure: str, defence: str, failure_type: str) -> pd.DataFrame:
    """Logit of the structure's rate − logit of flat's, per model, and whether a rate of 0 or 1 had to be corrected."""
    arm, flat = (published_rate(name, defence, failure_type) for name in (structure, "flat"))
    corrected = arm.isin([0, 1]) | flat.isin([0, 1])
    n, half = grid().set_index("failure_type")["n_entries"][failure_type].max(), 0.5 * corrected
    arm, flat = ((rate * n + half) / (n + 2 * half) for rate in (arm, flat))
    return pd.DataFrame({"log_odds": logit(arm) - logit(flat), "corrected": corrected})


def _defences(structure: str, failure_type: str) -> list[str]:
    others = [cell for cell in rate_cells() if cell[0] != "flat" and cell[1] != _STANDARD]
    found = [under for of, under, kind in others if (of, kind) == (structure, failure_type)]
    if not found:
        kinds = {kind for *_, kind in others}
        wrong = ("structure", structure, {of for of, *_ in others})
        raise choice(*(wrong if failure_type in kinds else ("failure_type", failure_type, kinds)))
    return found


def _at_the_edge(rates: pd.Series) -> str:
    """Models whose baseline rate leaves little room, in words; empty if none."""
    places = ("floor", rates[rates < _FLOOR]), ("ceiling", rates[rates > _CEILING])
    said = [
        f"baseline at the {place} in {len(at)} of {len(rates)} models ({100 * at.min():.1f} to {100 * at.max():.1f} %)"
        if len(at) > 1
        else f"baseline at the {place} in {at.index[0]} ({100 * at.iloc[0]:.1f} %)"
        for place, at in places
        if len(at)
    ]
    return "; ".join(said)


def _with_holm(table: pd.DataFrame) -> pd.DataFrame:
    """``holm_p`` beside ``t_p``, adjusted within each family."""
    families = table.groupby("family", sort=False)["t_p"]
    holm = families.transform(lambda p: _holm(p.to_numpy()))
    table.insert(table.columns.get_loc("t_p") + 1, "holm_p", holm)
    return table.assign(n_family=families.transform("size"), **DESCRIPTIVE)


def _holm(p: np.ndarray) -> np.ndarray:
    # Holm 1979. statsmodels' multipletests gives the same and collects all garbage at each call, which takes longer
    # than all else that these tables need.
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    return np.minimum(stepped, 1.0)[np.argsort(order)]
