"""Odds ratios over all models at once, with entries as clusters: GEE and conditional logistic regression."""

from __future__ import annotations

import warnings
from math import exp, nan

import numpy as np
import pandas as pd
from scipy.special import gammaln

from .analysis_plan import planned_draws
from .outcomes import is_echo
from .pairing import Behind, by_arm, compare, said, shown_keys, with_numbers
from .resampling import check_draws, few_entries, percentile_interval, resampled_sums, sign_flips
from .stamping import stamped

GEE, CONDITIONAL = "GEE", "conditional logistic"
_EDGE = 20.0  # log odds beyond which an estimate is on its way to infinity
_COLUMNS = (
    "method", "odds_ratio", "odds_low", "odds_high", "interval", "odds_p", "test", "rate_baseline", "rate_arm",
    "n_models", "n_entries", "n_strata", "n_informative", "baseline", "outcome", "remark", "warning",
)  # fmt: skip


def logistic_effects(
    results: pd.DataFrame,
    baseline: str = "flat",
    outcome: str | None = None,
    draws: int | None = None,
    seed: int | None = None,
) -> pd.DataFrame:
    """Each arm's odds ratio against the baseline over all models, respecting that the same entries meet every model.

    Two answers, which differ by more than error: *GEE* (Liang & Zeger 1986, Biometrika 73:13) compares the odds of
    failing over all entries, with the model as a factor, an exchangeable working correlation within entries, and the
    bias-reduced sandwich variance over entries (Mancl & DeRouen 2001, Biometrics 57:126), from statsmodels.
    *Conditional logistic regression* (Breslow & Day 1980, *Statistical Methods in Cancer Research* I, chapter 7)
    compares them within one entry and model, a stratum of all their runs, so that how hard an entry is drops out; it
    lies further from 1. Its interval is a cluster bootstrap over entries. Its p is a sign-flip test of the
    conditional score, arms swapped entry by entry (exact McNemar with one model and run).

    Where outcomes are separated no odds ratio is finite. Then there is none in the table: the remark says which arm
    always or never fails, and p is from the sign-flip test, which needs no odds ratio.

    Parameters
    ----------
    results, baseline, outcome, draws, seed
        As in ``pooled_differences``: the analysis plan's draws and seed by default.

    Returns
    -------
    DataFrame
        Two rows per failure type × arm (× settings that differ): ``method``, ``odds_ratio`` (arm over baseline: below 1
        the arm fails less), ``odds_low``, ``odds_high`` (95 %), ``interval``, ``odds_p`` (two-sided), ``test``,
        ``rate_baseline`` and ``rate_arm`` in [0, 1] (of all answers compared), the discordant pairs
        ``n_only_baseline_fails`` and ``n_only_arm_fails`` (``…_echoes``), ``n_models`` (GEE leaves out those in which
        every answer or none fails, and names them), ``n_entries`` (clusters), ``n_strata`` (entry × model),
        ``n_informative`` of them (not all outcomes alike), ``baseline``, ``outcome``, ``remark`` and ``warning``.

    Raises
    ------
    InputError
        As ``pooled_differences``.
    """
    draws, seed = planned_draws(draws, seed)
    check_draws(draws, seed)
    outcome = outcome or ("echo" if is_echo(results) else "failure")
    verb = {"failure": "fails", "echo": "echoes"}[outcome]
    table, behind = compare(results, ["model"], baseline, outcome)
    discordant = [f"n_only_baseline_{verb}", f"n_only_arm_{verb}"]
    at = _COLUMNS.index("n_models")
    columns = [*_COLUMNS[:at], *discordant, *_COLUMNS[at:]]
    rows, keys = [], ["failure_type", "arm"]
    for named, group, found in by_arm(table, behind) if len(table) else ():
        keys = list(named)
        answers = _answers(group["model"], found)
        warned = int((group["warning"] != "").sum())
        common = named | group[discordant].sum().astype(int).to_dict() | {"baseline": baseline, "outcome": outcome}
        common["warning"] = f"warnings for {warned} of {len(group)} runs" if warned else ""
        strata = _strata(answers)
        common |= {"n_strata": len(strata), "n_informative": int(strata["informative"].sum())}
        arms = {1: named["arm"], 0: baseline}
        p, _, test = sign_flips(_scores(strata), draws, np.random.default_rng(seed))
        flips = {"odds_p": p, "test": test}
        for method, one in (
            (GEE, _gee(answers, arms, verb)),
            (CONDITIONAL, _conditional(strata, arms, verb, draws, seed)),
        ):
            rows.append(common | {"method": method} | flips | one)
    table = pd.DataFrame(rows, columns=[*keys, *columns])
    return stamped(with_numbers(table[[*shown_keys(table, keys), *columns]] if rows else table), results)


def _answers(models: pd.Series, found: list[Behind]) -> pd.DataFrame:
    """One row per entry, model, arm and run; a baseline run that several runs are compared with counts once."""
    parts = []
    for model, one in zip(models, found, strict=True):
        for arm, units in ((1, one.arm), (0, one.baseline)):
            units = units[units["entry_id"].isin(one.pairs["entry_id"])]
            parts.append(units[["entry_id", "failed"]].assign(model=model, arm=arm))
    answers = pd.concat(parts)
    return answers[~answers.index.duplicated()].sort_values(["entry_id", "model", "arm"], kind="stable")


def _strata(answers: pd.DataFrame) -> pd.DataFrame:
    """One row per entry and model: runs of the arm and of the baseline, failures of both, and of the arm."""
    of_arm = answers["arm"] == 1
    counted = answers.assign(
        n_arm=of_arm, n_baseline=~of_arm, fails=answers["failed"], arm_fails=answers["failed"].where(of_arm, 0.0)
    )
    names = ["n_arm", "n_baseline", "fails", "arm_fails"]
    strata = counted.groupby(["entry_id", "model"], as_index=False)[names].sum().astype(dict.fromkeys(names, int))
    n = strata["n_arm"] + strata["n_baseline"]
    return strata.assign(informative=(strata["fails"] > 0) & (strata["fails"] < n))


def _scores(strata: pd.DataFrame) -> np.ndarray:
    """Per entry, failures of the arm beyond those expected if the arms were alike: the conditional score at 1."""
    expected = strata["n_arm"] * strata["fails"] / (strata["n_arm"] + strata["n_baseline"])
    return (strata["arm_fails"] - expected).groupby(strata["entry_id"]).sum().to_numpy(dtype=float)


def _without(reason: str, remark: str = "") -> dict:
    return {"odds_ratio": nan, "odds_low": nan, "odds_high": nan, "interval": f"not available: {reason}"} | {
        "remark": remark
    }


# -- GEE --------------------------------------------------------------------------------------------------------------


def _gee(answers: pd.DataFrame, arms: dict, verb: str) -> dict:
    share = answers.groupby("model")["failed"].mean()
    flat = list(share.index[(share == 0) | (share == 1)])
    kept = answers[~answers["model"].isin(flat)]
    counts = {"n_models": len(share) - len(flat)}
    rates = answers.groupby("arm")["failed"].mean()
    counts |= {"rate_arm": rates.get(1, nan), "rate_baseline": rates.get(0, nan)}
    counts["n_entries"] = n = kept["entry_id"].nunique()
    without = [f"{', '.join(map(str, flat))}: every answer or none {verb}, left out" if flat else ""]
    if not len(kept):
        return counts | _without("no variation" if len(answers) else "no pairs", said(without))
    if separated := _separated(kept, arms, verb):
        return counts | _without("separated", said([*without, separated]))
    by_arm_and_entry = kept.groupby(["entry_id", "model", "arm"])["failed"].mean().unstack("arm")
    if by_arm_and_entry[0].eq(by_arm_and_entry[1]).all():
        return counts | _without("no discordant pairs", said([*without, "no discordant pairs"]))
    if n <= counts["n_models"] + 1:
        entries = f"{n} {'entry' if n == 1 else 'entries'}"
        return counts | _without(f"{entries} for {counts['n_models'] + 1} coefficients", said(without))
    found = _fit_gee(kept)
    if found is None:
        return counts | _without("the fit did not converge", said(without))
    effect, error, p, correlation = found
    without.append(few_entries(n))
    bounds = {"odds_low": exp(effect - 1.959964 * error), "odds_high": exp(effect + 1.959964 * error)}
    interval = f"Wald, GEE ({correlation}), sandwich over entries"
    test = {"odds_p": p, "test": "Wald, sandwich over entries"}
    return counts | {"odds_ratio": exp(effect)} | bounds | {"interval": interval, "remark": said(without)} | test


def _separated(answers: pd.DataFrame, arms: dict, verb: str) -> str:
    """Words for answers that no finite coefficient of the arm fits best; empty where one does.

    With a factor for the model that is so exactly if one arm, in every model, always fails where the other does not,
    or never where the other does: the arm's coefficient can then grow for ever, while each model's intercept makes up
    for it.
    """
    share = answers.groupby(["model", "arm"])["failed"].mean().unstack("arm")
    for more, less in ((1, 0), (0, 1)):
        always, never = share[more] == 1, share[less] == 0
        if (always | never).all():
            kind = "complete separation" if (always & never).all() else "quasi-separation"
            told = [answers.loc[answers["arm"] == arm, "failed"] for arm in (more, less)]
            counts = [
                f"{arms[arm]} {verb} in {int(one.sum())} of {len(one)}"
                for arm, one in zip((more, less), told, strict=True)
            ]
            everywhere = "" if len(share) == 1 else f"in every model {arms[more]} always {verb} or {arms[less]} never; "
            return f"{kind}, no finite odds ratio: {everywhere}{', '.join(counts)}"
    return ""


def _fit_gee(answers: pd.DataFrame) -> tuple[float, float, float, str] | None:
    """Log odds ratio, its standard error and p; None where neither working correlation gives an estimate."""
    from statsmodels.genmod.cov_struct import Exchangeable, Independence
    from statsmodels.genmod.families import Binomial
    from statsmodels.genmod.generalized_estimating_equations import GEE as Fit

    models = pd.get_dummies(answers["model"]).to_numpy(dtype=float)
    design = np.column_stack([answers["arm"].to_numpy(dtype=float), models])
    groups = pd.factorize(answers["entry_id"])[0]
    for correlation in (Exchangeable(), Independence()):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what they would say is checked below, and said in words
            try:
                fit = Fit(
                    answers["failed"].to_numpy(), design, groups=groups, family=Binomial(), cov_struct=correlation
                ).fit(cov_type="bias_reduced")
                effect, error, p = (float(value[0]) for value in (fit.params, fit.bse, fit.pvalues))
            except (ValueError, np.linalg.LinAlgError):
                continue
        if fit.converged and np.isfinite([effect, error]).all() and abs(effect) < _EDGE and error > 0:
            return effect, error, p, type(correlation).__name__.lower()
    return None


# -- conditional logistic regression ----------------------------------------------------------------------------------


def _conditional(strata: pd.DataFrame, arms: dict, verb: str, draws: int, seed: int) -> dict:
    answers = strata[["n_arm", "n_baseline", "fails", "arm_fails"]].sum()
    found = {
        "n_models": strata["model"].nunique(), "n_entries": (n := strata["entry_id"].nunique()),
        "rate_arm": answers["arm_fails"] / answers["n_arm"] if n else nan,
        "rate_baseline": (answers["fails"] - answers["arm_fails"]) / answers["n_baseline"] if n else nan,
    }  # fmt: skip
    some = strata[strata["informative"]]
    if not len(some):
        reason = "no discordant pairs" if n else "no pairs"
        return found | _without(reason, reason if n else "")
    kinds, per_entry = _kinds(some)
    total = per_entry.sum(axis=0)
    (effect,) = _solved(kinds, total[None, :])
    if abs(effect) > _EDGE - 1:
        more, less = (arms[1], arms[0]) if effect > 0 else (arms[0], arms[1])
        remark = f"separation, no finite odds ratio: wherever the arms of an entry differ, it is {more} that {verb}"
        return found | _without("separated", remark)
    # Entries without information are drawn too: their number varies from draw to draw.
    per_entry = np.vstack([per_entry, np.zeros((n - len(per_entry), per_entry.shape[1]))])
    estimates = _solved(kinds, resampled_sums(per_entry, draws, np.random.default_rng(seed)))
    low, high, interval = percentile_interval(estimates, n)
    remark = [few_entries(n)]
    for name, side, off in (("lower", low, estimates < 1 - _EDGE), ("upper", high, estimates > _EDGE - 1)):
        if abs(side) > _EDGE - 1:
            remark.append(f"no {name} bound: separated in {100 * np.mean(off):.1f} % of the draws")
    low, high = (exp(side) if abs(side) <= _EDGE - 1 else nan for side in (low, high))
    return (
        found
        | {"odds_ratio": exp(effect), "odds_low": low, "odds_high": high, "interval": interval}
        | {"remark": said(remark)}
    )


def _kinds(strata: pd.DataFrame) -> tuple[list[tuple[np.ndarray, np.ndarray]], np.ndarray]:
    """Kinds of strata (possible failures of the arm and their log weights), and per entry what it adds.

    Given the failures of a stratum, those of the arm are noncentral hypergeometric: C(n₁, t) C(n₀, m − t) θᵗ. Strata of
    the same n₁, n₀ and m are of one kind, so that a few numbers per entry hold the whole likelihood: the failures of
    the arm, then how many strata of each kind.
    """
    margins = strata[["n_arm", "n_baseline", "fails"]].to_numpy(dtype=int)
    unique, kind = np.unique(margins, axis=0, return_inverse=True)
    entry = pd.factorize(strata["entry_id"])[0]
    per_entry = np.zeros((entry.max() + 1, 1 + len(unique)))
    np.add.at(per_entry, (entry, 0), strata["arm_fails"].to_numpy(dtype=float))
    np.add.at(per_entry, (entry, 1 + kind.ravel()), 1.0)
    kinds = []
    for n_arm, n_baseline, fails in unique:
        possible = np.arange(max(0, fails - n_baseline), min(fails, n_arm) + 1)
        kinds.append((possible, _log_choose(n_arm, possible) + _log_choose(n_baseline, fails - possible)))
    return kinds, per_entry


def _log_choose(n: int, k: np.ndarray) -> np.ndarray:
    return gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)


def _solved(kinds: list[tuple[np.ndarray, np.ndarray]], sums: np.ndarray) -> np.ndarray:
    """Log odds ratios that maximise the conditional likelihood, one per row of sums; ±20 stands for separation.

    statsmodels fits one data set at a time; 10,000 resamples need all at once. The score falls with the log odds, so it
    is bisected. NaN for a row without informative strata.
    """
    low, high = np.full(len(sums), -_EDGE), np.full(len(sums), _EDGE)
    for _ in range(36):
        middle = (low + high) / 2
        score = sums[:, 0].copy()
        for (possible, weight), count in zip(kinds, sums[:, 1:].T, strict=True):
            terms = weight + possible * middle[:, None]
            likely = np.exp(terms - terms.max(axis=1, keepdims=True))
            score -= count * (likely @ possible) / likely.sum(axis=1)
        rising = score > 0
        low, high = np.where(rising, middle, low), np.where(rising, high, middle)
    return np.where(sums[:, 1:].sum(axis=1) > 0, (low + high) / 2, nan)
