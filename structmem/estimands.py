"""Differences over models: for these models on new entries, for new models, without each model, and between them."""

from __future__ import annotations

from collections.abc import Iterator
from math import lcm, nan
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from .analysis_plan import ESTIMANDS, planned_draws
from .intervals import MOST_SIGN_FLIPS, bounded, over_models
from .outcomes import is_echo
from .pairing import Behind, by_arm, compare, said, shown_keys, with_numbers
from .resampling import check_draws, few_entries, multinomial, percentile_interval, resampled_means, sign_flips
from .stamping import stamped

THESE_MODELS, NEW_MODELS = ESTIMANDS
ENTRY, ENTRY_RUN, MODEL = "entry", "entry, then run", "model"
# Beside the maximum over generations: the mean over generations, and the mean of what was judged (score or overlap).
_BESIDE = ("at_1_difference_pp", "at_1_low_pp", "at_1_high_pp", "mean_score_difference")
_ESTIMATE = (
    "estimand", "unit", "difference_pp", "low_pp", "high_pp", "interval", "reduction_pp", "sd_pp", "sd_note",
    "sign_flip_p", "t_p", "wilcoxon_p", "smallest_p", "test", *_BESIDE, "n_models", "n_models_down", "n_models_up",
    "n_entries", "n_runs", "baseline", "outcome", "remark", "warning",
)  # fmt: skip


def pooled_differences(
    results: pd.DataFrame,
    baseline: str = "flat",
    outcome: str | None = None,
    draws: int | None = None,
    seed: int | None = None,
) -> pd.DataFrame:
    """Mean over models of each arm's paired difference, for two named estimands that answer two questions.

    *these models, new entries* (primary): what these models would do on other entries of the same kind. Entries are
    resampled with all that belongs to them, over models and runs alike, since every model meets the same ones: a
    cluster bootstrap with expanded percentiles. p is from a sign-flip test that swaps the arms of an entry in all
    models at once (exact up to 20 entries whose outcomes differ). Where an arm has several runs (partition draws,
    replicates) a second row resamples these too, whole runs within a model, so that drift between runs counts; what
    entry and run do together is counted more than once then, which errs on the wide side (Owen 2007, Annals of Applied
    Statistics 1:386), and few runs are rescaled (Rao & Wu 1988, Journal of the American Statistical Association
    83:231).

    *new models* (exploratory): what other models would do, if these are exchangeable draws from them: a t interval over
    one difference per model, with exact sign-flip and Wilcoxon signed-rank tests (zeros are dropped, ties get mean
    ranks). With seven models no exact p can be below .0156, however large the effect: see ``smallest_p``.

    Pairs are matched as in ``paired_differences``; each model weighs the same, and each run within its model.

    Parameters
    ----------
    results : DataFrame
        One row per generation. Generations are never resampled: under a maximum that would bias the rate.
    baseline : str
        A structure in the results.
    outcome : 'failure', 'echo' or None
        As in ``paired_differences``.
    draws, seed : int, optional
        Of the bootstrap and of sign flips that are too many to enumerate; at least 100 draws. Default: the analysis
        plan's ``resamples`` and ``seed``. The interval's name shows the number of draws.

    Returns
    -------
    DataFrame
        Two or three rows per failure type × arm (× settings that differ; arms of another K or threshold apart), A/A
        first: ``estimand``, ``unit`` (what is resampled: 'entry', 'entry, then run', 'model'), ``difference_pp`` = mean
        over models of arm − baseline, ``low_pp``, ``high_pp`` (95 %), ``interval``, ``reduction_pp``, ``sd_pp`` and
        ``sd_note`` (spread of the models' reductions, n − 1), ``sign_flip_p``, ``t_p``, ``wilcoxon_p`` (two-sided),
        ``smallest_p`` (that the sign-flip test could give), ``test``; ``at_1_difference_pp`` with ``at_1_low_pp``,
        ``at_1_high_pp``, the same of FR@1, and ``mean_score_difference``; ``n_models``, of which ``…_down`` and
        ``…_up``, ``n_entries`` (clusters), ``n_runs``, ``remark`` and ``warning`` in words.

    Raises
    ------
    InputError
        As ``paired_differences``; also for draws or a seed that are none.
    """
    draws, seed = planned_draws(draws, seed)
    check_draws(draws, seed)
    rows, keys = [], ["failure_type", "arm"]
    for cells in _cells(results, baseline, outcome):
        keys, resampled = list(cells.named), _Resampled(cells, draws, seed)
        every = np.ones(len(cells.models), dtype=bool)
        estimates = [_over_entries(cells, resampled, every, draws, seed), _over_models(cells, every)]
        if cells.several_runs:
            estimates.insert(1, _over_runs(cells, resampled))
        rows += [cells.named | cells.told(every) | one | {"remark": _remark(cells, one)} for one in estimates]
    return _table(rows, keys, [], results, (draws, seed))


def leave_one_model_out(
    results: pd.DataFrame,
    baseline: str = "flat",
    outcome: str | None = None,
    draws: int | None = None,
    seed: int | None = None,
) -> pd.DataFrame:
    """Both estimands of ``pooled_differences`` with each model left out in turn: whether one model carries the result.

    Parameters
    ----------
    results, baseline, outcome, draws, seed
        As in ``pooled_differences``.

    Returns
    -------
    DataFrame
        Per failure type × arm one pair of rows for all models, then one pair per model left out: ``model`` ('all
        models', 'all but …'), ``left_out`` (empty, then the model) and the columns of ``pooled_differences``.

    Raises
    ------
    InputError
        As ``pooled_differences``.
    """
    draws, seed = planned_draws(draws, seed)
    check_draws(draws, seed)
    rows, keys = [], ["failure_type", "arm"]
    for cells in _cells(results, baseline, outcome):
        keys, resampled = list(cells.named), _Resampled(cells, draws, seed)
        for left_out in ("", *cells.models):
            kept = np.array([model != left_out for model in cells.models], dtype=bool)
            who = {"model": f"all but {left_out}" if left_out else "all models", "left_out": left_out}
            for one in (_over_entries(cells, resampled, kept, draws, seed), _over_models(cells, kept)):
                rows.append(cells.named | who | cells.told(kept) | one | {"remark": _remark(cells, one)})
    return _table(rows, keys, ["model", "left_out"], results, (draws, seed))


def heterogeneity(results: pd.DataFrame, baseline: str = "flat", outcome: str | None = None) -> pd.DataFrame:
    """Whether the models differ in an arm's paired difference, and by how much beyond what other entries would change.

    Hotelling's T² on the contrasts between models (as in ``statsmodels.stats.multivariate.test_mvmean``), with the
    covariance of their differences over entries as clusters. Cochran's Q and the I² made from it take the models for
    independent; here every model meets the same entries, so their errors are correlated. ``tau_pp`` is the moment
    estimate of the spread of true differences: the variance between models minus the part that the clustered
    covariance V expects from entries alone, (tr V − 1ᵀV1 / M) / (M − 1), and 0 if that is more.

    Returns
    -------
    DataFrame
        One row per failure type × arm (× settings that differ): mean ``difference_pp`` and ``sd_pp`` over models
        (n − 1), ``tau_pp``, ``lowest_pp`` and ``highest_pp`` of the models' differences with ``lowest_model`` and
        ``highest_model``; ``t2``, its degrees of freedom ``df`` (models − 1) and ``df_entries``, ``heterogeneity_p``
        (from F), ``test``, ``n_models``, ``n_entries``, ``n_runs``, ``baseline``, ``outcome``, ``remark``, ``warning``.
        NaN with the reason in ``remark`` where there are fewer than two models, too few entries or no variation.

    Raises
    ------
    InputError
        As ``paired_differences``.
    """
    rows, keys = [], ["failure_type", "arm"]
    for cells in _cells(results, baseline, outcome):
        keys = list(cells.named)
        told = cells.told(np.ones(len(cells.models), dtype=bool))
        found = _between(cells)
        rows.append(cells.named | told | found | {"remark": _remark(cells, found)})
    columns = [
        "difference_pp", "sd_pp", "sd_note", "tau_pp", "lowest_pp", "lowest_model", "highest_pp", "highest_model", "t2",
        "df", "df_entries", "heterogeneity_p", "test", "n_models", "n_entries", "n_runs", "baseline", "outcome",
        "remark", "warning",
    ]  # fmt: skip
    table = pd.DataFrame(rows, columns=[*keys, *columns])
    return stamped(with_numbers(table[[*shown_keys(table, keys), *columns]] if rows else table), results)


def _between(cells: Cells) -> dict:
    n_models, n = len(cells.models), len(cells.values)
    found: dict = dict.fromkeys(("tau_pp", "t2", "df", "df_entries", "heterogeneity_p"), nan) | {"test": "none"}
    if not n_models:
        return found | {"remark": ""}
    differences = cells.differences_pp
    low, high = int(differences.argmin()), int(differences.argmax())
    found |= {"lowest_pp": differences[low], "lowest_model": cells.models[low]}
    found |= {"highest_pp": differences[high], "highest_model": cells.models[high]}
    if n_models < 2 or n < 2:
        return found | {"remark": "not available: one " + ("model" if n_models < 2 else "entry")}
    centred = 100 * (cells.values - np.nanmean(cells.values, axis=0)) / (~np.isnan(cells.values)).sum(axis=0)
    influence = cells.per_model(np.nan_to_num(centred))
    covariance = n / (n - 1) * influence.T @ influence
    by_chance = (np.trace(covariance) - covariance.sum() / n_models) / (n_models - 1)
    found["tau_pp"] = float(np.sqrt(max(differences.var(ddof=1) - by_chance, 0.0)))
    contrasts = np.eye(n_models)[1:] - np.eye(n_models)[0]
    gaps, between = contrasts @ differences, contrasts @ covariance @ contrasts.T
    if not between.any():
        why = "and do not differ" if not gaps.any() else "although they differ"
        return found | {"remark": f"not available: the models do not vary over entries {why}"}
    # Models that answer alike add no dimension; a difference in one without variation cannot be tested.
    roots, vectors = np.linalg.eigh(between)
    kept = roots > 1e-10 * roots.max()
    along = vectors.T @ gaps
    rank = int(kept.sum())
    if np.abs(along[~kept]).max(initial=0) > 1e-6:
        return found | {"remark": "not available: some models differ by the same amount in every entry"}
    if n <= rank:
        return found | {"remark": f"not available: {n} entries are too few for {n_models} models"}
    t2 = float(np.sum(along[kept] ** 2 / roots[kept]))
    p = float(stats.f.sf(t2 * (n - rank) / (rank * (n - 1)), rank, n - rank))
    test = "Hotelling's T² between models, entries as clusters"
    remark = "the models differ no more than other entries would make them" if found["tau_pp"] == 0 else ""
    numbers = {"t2": t2, "df": rank, "df_entries": n - rank, "heterogeneity_p": p}
    return found | numbers | {"test": test, "remark": remark}


class Cells(NamedTuple):
    """One arm's paired differences, entry by entry and run by run."""

    named: dict  # failure type, arm, settings, K
    values: np.ndarray  # entries × runs: failed_arm − failed_baseline, NaN where a pair is incomplete
    ones: np.ndarray  # likewise, of the share of generations that fail
    scores: np.ndarray  # likewise, of the mean score (echo: overlap)
    owner: np.ndarray  # per run, the position of its model
    models: list[str]  # that have pairs
    facts: dict  # baseline, outcome, warning
    remarks: list[str]
    n_baselines: int  # runs of the baseline that the runs of the arm are compared with

    def per_model(self, means: np.ndarray) -> np.ndarray:
        """Means over the runs of each model, from one value per run in the last axis."""
        return np.stack([means[..., self.owner == m].mean(axis=-1) for m in range(len(self.models))], axis=-1)

    @property
    def differences_pp(self) -> np.ndarray:
        """One per model."""
        return self.of_models(100 * self.values)

    def of_models(self, values: np.ndarray) -> np.ndarray:
        """One mean per model, from entries × runs."""
        if not self.models:
            return np.array([])
        return np.round(self.per_model(np.nanmean(values, axis=0)), 9) + 0.0

    @property
    def several_runs(self) -> bool:
        return len(self.owner) > len(self.models)

    def told(self, kept: np.ndarray) -> dict:
        """What every row says of the models kept: their number, their spread, and how much is behind them."""
        differences, runs = self.differences_pp[kept], np.isin(self.owner, np.flatnonzero(kept))
        n = len(differences)
        note = f"n − 1, {n} models" if n > 1 else f"n/a ({n} model{'' if n else 's'})"
        difference = float(differences.mean()) if n else nan
        beside = {"at_1_difference_pp": 100 * self.ones, "mean_score_difference": self.scores}
        means = {name: float(self.of_models(values)[kept].mean()) if n else nan for name, values in beside.items()}
        return self.facts | means | {
            "difference_pp": difference, "reduction_pp": 0.0 - difference,
            "sd_pp": float(differences.std(ddof=1)) if n > 1 else nan, "sd_note": note, "n_models": n,
            "n_models_down": int((differences < 0).sum()), "n_models_up": int((differences > 0).sum()),
            "n_entries": int((~np.isnan(self.values[:, runs])).any(axis=1).sum()), "n_runs": int(runs.sum()),
        }  # fmt: skip


def _cells(results: pd.DataFrame, baseline: str, outcome: str | None) -> Iterator[Cells]:
    outcome = outcome or ("echo" if is_echo(results) else "failure")
    table, behind = compare(results, ["model"], baseline, outcome)
    if not len(table):
        return
    for named, group, found in by_arm(table, behind):
        yield _matched(named, group, found, {"baseline": baseline, "outcome": outcome})


def _matched(named: dict, group: pd.DataFrame, found: list[Behind], facts: dict) -> Cells:
    pairs = [(model, one) for model, one in zip(group["model"], found, strict=True) if len(one.pairs)]
    asked = list(dict.fromkeys(group["model"]))
    models = [model for model in asked if model in {name for name, _ in pairs}]
    # Sorted, so that the order of the results' rows decides nothing.
    entries = {entry: row for row, entry in enumerate(sorted({e for _, one in pairs for e in one.pairs["entry_id"]}))}
    values, ones, scores = np.full((3, len(entries), len(pairs)), nan)
    for run, (_, one) in enumerate(pairs):
        at = [entries[entry] for entry in one.pairs["entry_id"]]
        for array, name in ((values, "failed"), (ones, "failed_one"), (scores, "mean_value")):
            gap = one.pairs[f"{name}_arm"] - one.pairs[f"{name}_baseline"]
            array[at, run] = gap.to_numpy(dtype=float)
    n_pairs = (~np.isnan(values)).sum(axis=0)
    lost, gone = len(asked) - len(models), len(group) - len(pairs)
    remarks = [f"{lost} of {len(asked)} models without pairs, not in the mean" if lost and models else ""]
    remarks.append(f"{gone} of {len(group)} runs without pairs, not in the mean" if gone > lost else "")
    if len(n_pairs) and n_pairs.min() < n_pairs.max():
        remarks.append(f"models and runs rest on {n_pairs.min()} to {n_pairs.max()} entries")
    if not pairs:
        remarks += list(group["remark"])
    warned = int((group["warning"] != "").sum())
    facts = facts | {"warning": f"warnings for {warned} of {len(group)} runs" if warned else ""}
    owner = np.array([models.index(model) for model, _ in pairs], dtype=int)
    n_baselines = len({(model, *sorted(one.baseline.index)) for model, one in pairs})
    return Cells(named, values, ones, scores, owner, models, facts, remarks, n_baselines)


class _Resampled:
    """Bootstrap estimates of one arm, made once for all that is asked of them."""

    def __init__(self, cells: Cells, draws: int, seed: int):
        self.rng = np.random.default_rng(seed)
        self.draws = draws
        self.runs = self.models = self.ones = np.full((draws, 0), nan)
        if cells.models:
            means = 100 * resampled_means(np.hstack([cells.values, cells.ones]), draws, self.rng)
            self.runs, ones = np.hsplit(means, 2)
            self.models, self.ones = cells.per_model(self.runs), cells.per_model(ones)


def _over_entries(cells: Cells, resampled: _Resampled, kept: np.ndarray, draws: int, seed: int) -> dict:
    models = np.flatnonzero(kept)
    runs = np.isin(cells.owner, models)
    values = cells.values[:, runs]
    values = values[~np.isnan(values).all(axis=1)]
    estimates = resampled.models[:, models].mean(axis=1) if len(models) else np.array([])
    low, high, interval = percentile_interval(estimates, len(values))
    ones = resampled.ones[:, models].mean(axis=1) if len(models) else np.array([])
    at_1 = percentile_interval(ones, len(values))
    p, smallest, test = sign_flips(_per_entry(values, cells.owner[runs]), draws, np.random.default_rng(seed))
    found = {"estimand": THESE_MODELS, "unit": ENTRY, "low_pp": low, "high_pp": high, "interval": interval}
    found |= {"at_1_low_pp": at_1[0], "at_1_high_pp": at_1[1]}
    no_change = len(values) and not np.nansum(np.abs(values))
    remark = "no discordant pairs" if no_change else few_entries(len(values))
    return found | {"sign_flip_p": p, "smallest_p": smallest, "test": test, "remark": remark}


def _per_entry(values: np.ndarray, owner: np.ndarray) -> np.ndarray:
    """What each entry adds to the mean over models; whole numbers where all runs rest on as many entries (no ties lost
    to thirds)."""
    if not values.size:
        return np.array([])
    n_runs, n_pairs = np.bincount(owner)[owner], (~np.isnan(values)).sum(axis=0)
    weights = lcm(*map(int, n_runs)) / n_runs * (n_pairs.max() / n_pairs)
    return np.nansum(values * weights, axis=1)


def _over_runs(cells: Cells, resampled: _Resampled) -> dict:
    models, single = [], 0
    for model in range(len(cells.models)):
        own = resampled.runs[:, cells.owner == model]
        n = own.shape[1]
        single += n == 1
        if n > 1:
            # Plain weights would understate the variance between n runs by the factor (n − 1) / n.
            weights = multinomial(n, resampled.draws, resampled.rng) / n
            own = own * (1 + np.sqrt(n / (n - 1)) * (n * weights - 1))
        models.append(own.mean(axis=1))
    estimates = np.clip(np.mean(models, axis=0), -100, 100)
    low, high, interval = percentile_interval(estimates, len(cells.values))
    remark = []
    if cells.n_baselines < len(cells.owner):
        remark.append(f"{len(cells.owner)} runs share {cells.n_baselines} of the baseline, whose drift is not in it")
    if single:
        remark.append(f"{single} of {len(models)} models have one run, whose drift is not in it")
    if len(models) == 1 and len(cells.owner) == 2:
        remark.append("one model, two runs: covers about 91 % instead of 95 % (200 entries)")
    return {
        "estimand": THESE_MODELS, "unit": ENTRY_RUN, "low_pp": low, "high_pp": high, "interval": interval,
        "test": "none; see the row over entries", "remark": said(remark),
    }  # fmt: skip


def _over_models(cells: Cells, kept: np.ndarray) -> dict:
    differences = cells.differences_pp[kept]
    over, at_1 = over_models(differences), over_models(cells.of_models(100 * cells.ones)[kept])
    (low, high), (one_low, one_high) = bounded(over.low, over.high), bounded(at_1.low, at_1.high)
    interval = "t over models, assumed exchangeable"
    if np.isnan(over.low):
        why = "no variation" if over.n > 1 else "one model" if over.n else "no pairs"
        interval = f"not available: {why}"
    remark = "assumes that the models are exchangeable" if over.n > 1 else ""
    test = "t; sign flips of models, exact; signed ranks, exact, zeros dropped" if over.n > 1 else "none: one model"
    if over.n > MOST_SIGN_FLIPS:
        test = f"t (more than {MOST_SIGN_FLIPS} models: exact tests are not made)"
    if over.n > 1 and not differences.any():
        remark = f"{remark}; all differences are 0"
    return {
        "estimand": NEW_MODELS, "unit": MODEL, "low_pp": low, "high_pp": high, "interval": interval,
        "at_1_low_pp": one_low, "at_1_high_pp": one_high,
        "sign_flip_p": over.sign_flip_p, "t_p": over.t_p, "wilcoxon_p": over.wilcoxon_p, "smallest_p": over.smallest_p,
        "test": test if over.n else "none: no pairs", "remark": remark,
    }  # fmt: skip


def _remark(cells: Cells, one: dict) -> str:
    return said([*cells.remarks, one["remark"]])


def _table(
    rows: list[dict], keys: list[str], more: list[str], results: pd.DataFrame, drawn: tuple[int, int]
) -> pd.DataFrame:
    if not rows:
        return stamped(pd.DataFrame(columns=[*keys, *more, *_ESTIMATE]), results)
    table = pd.DataFrame(rows, columns=[*keys, *more, *_ESTIMATE])
    table = stamped(with_numbers(table[[*shown_keys(table, keys), *more, *_ESTIMATE]]), results, drawn=drawn)
    # The plan's estimand is over entries; another row of the same contrast must not pass for it.
    second = table["unit"] == ENTRY_RUN
    note = [said([old, "runs are resampled too"]) for old in table.loc[second, "analysis_note"]]
    table.loc[second, "analysis"] = "exploratory"
    table.loc[second, "analysis_note"] = note
    return table
