"""Ordinal scores, arm against baseline: which entries move, by how much, and only then the rate."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from .analysis_plan import planned_draws
from .clusters import Arm, Effect, Interval, exploratory, mean_effect, mover, over_new_models, over_these_models, told
from .comparisons import ALL_MODELS, NEW_MODELS, THESE_MODELS
from .curves import NO_DISCORDANT, scale
from .missing import in_words, why_missing
from .ordinal_words import effect_words, ends_words
from .outcomes import ARM, is_echo, keep_none
from .pairing import Behind, arm_keys, compare, said, shown_keys, with_numbers
from .resampling import check_draws, sign_flips
from .stamping import stamped

NOT_COMPLETE = "no entry is complete in both arms"
NO_SCORES = "no ordinal scores: the echo measure sees words that come back, not how bad or good an answer is"


def ordinal_differences(
    results: pd.DataFrame, baseline: str = "flat", draws: int | None = None, seed: int | None = None
) -> pd.DataFrame:
    """Scores of each arm against those of the baseline, on the entries that are complete in both; the rate comes last.

    A rate sees only whether a score crosses its threshold. Where nearly every entry fails, scores can still move: from
    5 to 4 is less agreement, and no failure less. Pairs are matched as in ``paired_differences``.

    Parameters
    ----------
    results : DataFrame
        One row per generation.
    baseline : str
        A structure in the results.
    draws, seed : int, optional
        Of the sign-flip test over more than one run with more than 20 entries that move. Default: the analysis plan's.

    Returns
    -------
    DataFrame
        One row per failure type × arm (× settings that differ) × model; over several models two more, which weigh each
        model the same: ``estimand`` 'these models, new entries' (entries are the clusters) and 'new models' (t over
        models, assumed exchangeable). The runs of a model weigh the same.

        ``mean_score_baseline``, ``mean_score_arm`` over entries and generations; ``mean_score_difference`` = arm −
        baseline with ``mean_score_low``, ``mean_score_high`` (95 %, t over entries), which takes the steps of the scale
        as equal. ``superiority``, in [0, 1]: the probability that an answer of the arm scores better than one of the
        baseline for the same entry, ties counted half, with ``superiority_low``, ``superiority_high`` (t over entries):
        (1 + d) / 2 with Cliff's within-entry dominance d, over all pairs of generations (Cliff 1993, Psychological
        Bulletin 114:494; Vargha & Delaney 2000, Journal of Educational and Behavioral Statistics 25:101); ½ is no
        effect, and 'better' is lower where high is bad. ``n_better``, ``n_worse``, ``n_same``: entries (× runs ×
        models) whose score as the benchmark counts it, the maximum over generations, moves; ``net_better_pp``: share
        that gets better − share that gets worse, with ``net_better_low_pp``, ``net_better_high_pp`` (Tango's score
        interval for paired proportions; with several runs or models MOVER of it: see ``clusters.mover``).
        ``sign_p`` (two-sided, exact: the sign test of the entries that move, by ``scipy.stats.binomtest``; with several
        runs or models sign flips of entries; ``test`` names it). ``baseline_lowest_share``,
        ``baseline_highest_share``, ``arm_lowest_share``, ``arm_highest_share``: entries at an end of the scale, and
        ``ends`` says in words where that leaves little room. Last ``rate_baseline``, ``rate_arm`` and ``difference_pp``
        (FR@K) with ``low_pp``, ``high_pp``. ``reading`` in words; ``reason`` where there are no scores: an echo measure
        gives none. ``n_entries``, ``n_generations`` (K), ``n_models``, ``n_runs``, ``remark``, ``warning``.

    Raises
    ------
    InputError
        As ``paired_differences``; also for scores on an unknown scale.
    """
    draws, seed = planned_draws(draws, seed)
    check_draws(draws, seed)
    echo = is_echo(results)
    table, behind = compare(results, ["model"], baseline, "echo" if echo else "failure")
    if not len(table):
        return stamped(pd.DataFrame(), results)
    scores = None if echo else _scores(results)
    keys = ["model", *arm_keys(table)]
    arms = []
    for key, group in table.groupby(keys, sort=False):
        named = dict(zip(keys, key, strict=True))
        found = [behind[i] for i in group.index if not echo and len(behind[i].pairs)]
        runs = tuple(_run(one, scores) for one in found)
        # Without scores no entry is complete, as the reason says.
        spare = (NO_DISCORDANT, *((NOT_COMPLETE,) if echo else ()))
        remark = said(part for text in group["remark"] for part in text.split("; ") if part not in spare)
        words = remark, "" if echo else said(group["warning"])
        arms.append(Arm(named, baseline, "failure", runs, len(group) - len(runs), *words))
    lacking = _why_none(results, echo)
    groups: dict[tuple, list[Arm]] = {}
    for arm in arms:
        groups.setdefault(tuple(arm.named[key] for key in keys[1:]), []).append(arm)
    rows = []
    for group in groups.values():
        ends = scores.ends[group[0].named["failure_type"]] if scores else ()
        for arm in group:
            one = {"model": arm.named["model"], "estimand": THESE_MODELS, "unit": "entry"}
            counts = {"n_entries": arm.n_entries, "n_models": 1, "n_runs": len(arm.runs)}
            words = {"remark": arm.remark, "warning": arm.warning}
            rows.append(one | _numbers([arm], ends, draws, seed, lacking) | counts | words)
        if len(group) > 1:
            pooled = _numbers(group, ends, draws, seed, lacking)
            for estimand, unit, found in (
                (THESE_MODELS, "entry", pooled),
                (NEW_MODELS, "model", _by_model(group, pooled)),
            ):
                rows.append({"model": ALL_MODELS, "estimand": estimand, "unit": unit} | found | told(group, False))
    made = pd.DataFrame(rows).assign(baseline=baseline)
    shown = shown_keys(made, keys)
    rest = [column for column in made if column not in (*keys, "estimand", "unit", "baseline")]
    made = with_numbers(made[[*shown, "estimand", "unit", "baseline", *rest]])
    made = stamped(made, results, drawn=(draws, seed))
    return exploratory(made, pd.Series(True, made.index), "ordinal scores are not planned")


def _why_none(results: pd.DataFrame, echo: bool) -> str:
    if echo:
        return NO_SCORES
    why = in_words(why_missing(results[results["status"] != "ok"]).value_counts().to_dict())
    return said([f"no ordinal scores: {NOT_COMPLETE}", why])


class _Scores(NamedTuple):
    """Per arm a table of scores, entries × generations; the columns that name arms; each type's ends of the scale."""

    of: dict[tuple, pd.DataFrame]
    keys: list[str]
    ends: dict[str, tuple[int, int]]

    def __getitem__(self, units: pd.DataFrame) -> pd.DataFrame:
        return self.of[tuple(units[key].iloc[0] for key in self.keys)]


def _scores(results: pd.DataFrame) -> _Scores:
    keys = ["failure_type", *(column for column in ARM if column in results and column != "threshold")]
    rows = keep_none(results, ["entry_id", *keys])
    wide = {
        key: group.pivot(index="entry_id", columns="generation", values="score")
        for key, group in rows.groupby(keys, sort=False)
    }
    scales = {kind: scale(part) for kind, part in rows.groupby("failure_type", sort=False)}
    return _Scores(wide, keys, {kind: (found[0], found[-1]) for kind, found in scales.items()})


def _run(one: Behind, scores: _Scores) -> pd.DataFrame:
    """One run, an entry per row: its scores in both arms, how it moves, and which answers are better.

    ``better``: of all pairs of an answer of the arm and one of the baseline, those in which the arm's is better minus
    those in which it is worse, as a share; ``move``: +1 where the entry's score gets better, −1 where it gets worse.
    """
    pairs = one.pairs.set_index("entry_id").astype(float)
    bad = 1 if bool(one.arm["high_is_bad"].iloc[0]) else -1
    sides = [scores[side].loc[pairs.index].to_numpy(dtype=float) for side in (one.arm, one.baseline)]
    better = np.sign(bad * (sides[1][:, None, :] - sides[0][:, :, None])).mean(axis=(1, 2))
    arm, baseline = (side.max(axis=1) for side in sides)
    return pairs.assign(
        score_arm=arm, score_baseline=baseline, better=better, move=np.sign(bad * (baseline - arm)), bad=bad
    )


def _effect(arm: Arm, value) -> Effect:
    """Mean over entries of a value of each, the runs weighing the same."""
    cells = [value(run) for run in arm.runs]
    weights = np.full(len(cells), 1 / len(cells))
    return Effect(float(weights @ [cell.mean() for cell in cells]), pd.concat(cells, axis=1), weights)


def _effects(arms: Sequence[Arm]) -> dict[str, list[Effect]]:
    values = {
        "mean_score_difference": lambda run: run["mean_value_arm"] - run["mean_value_baseline"],
        "superiority": lambda run: (1 + run["better"]) / 2,
        "net_better_pp": lambda run: run["move"],
    }
    return {name: [_effect(arm, value) for arm in arms] for name, value in values.items()}


def _numbers(group: Sequence[Arm], ends: tuple, draws: int, seed: int, lacking: str) -> dict:
    """The columns of a row about these models: estimates, intervals over entries, test, ends of the scale, rate."""
    arms = [arm for arm in group if arm.runs]
    named = {key: value for key, value in group[0].named.items() if key != "model"}
    if not arms:
        return named | _nothing(lacking)
    effects = {name: mean_effect(found) for name, found in _effects(arms).items()}
    moves = effects["net_better_pp"]
    net = mover(moves.cells.to_numpy(dtype=float), moves.weights)
    p, test = _sign_test(moves, draws, seed)
    runs = [run for arm in arms for run in arm.runs]
    at = {
        f"{side}_{end}_share": _over(arms, lambda run, s=side, v=value: (run[f"score_{s}"] == v).mean())
        for side in ("baseline", "arm")
        for end, value in zip(("lowest", "highest"), ends, strict=True)
    }
    counts = {
        f"n_{name}": sum(int((run["move"] == sign).sum()) for run in runs)
        for name, sign in (("better", 1), ("worse", -1), ("same", 0))
    }
    rates = {side: _over(arms, lambda run, s=side: run[f"failed_{s}"].mean()) for side in ("baseline", "arm")}
    superiority = _within(effects["superiority"].interval())
    means = {
        f"mean_score_{s}": _over(arms, lambda run, s=s: run[f"mean_value_{s}"].mean()) for s in ("baseline", "arm")
    }
    bad = int(runs[0]["bad"].iloc[0])
    found = named | means | _with(effects["mean_score_difference"], "mean_score_difference")
    found |= _with(effects["superiority"], "superiority", superiority) | counts
    found |= {
        "net_better_pp": 100 * moves.estimate,
        "net_better_low_pp": 100 * net[0],
        "net_better_high_pp": 100 * net[1],
    }
    found |= {"sign_p": p, "test": test} | at | {f"rate_{side}": rate for side, rate in rates.items()}
    found |= {"difference_pp": mean_effect([arm.difference for arm in arms]).estimate}
    found |= dict(zip(("low_pp", "high_pp", "interval"), over_these_models(arms), strict=True))
    found |= {"ends": ends_words(at, ends, bad, group[0].baseline, group[0].named["arm"])}
    return found | {"reading": effect_words(found | {"bad": bad}), "reason": ""}


def _by_model(group: Sequence[Arm], pooled: dict) -> dict:
    """The row over models as if drawn from models like these: the same estimates, t intervals over models."""
    arms = [arm for arm in group if arm.runs]
    if not arms:
        return pooled
    found = dict(pooled)
    for name, effects in _effects(arms).items():
        interval = over_new_models([effect.estimate for effect in effects])
        if name == "net_better_pp":
            found |= {"net_better_low_pp": 100 * interval[0], "net_better_high_pp": 100 * interval[1]}
        else:
            found |= _with(mean_effect(effects), name, _within(interval) if name == "superiority" else interval)
    rate = over_new_models([arm.difference.estimate for arm in arms])
    found |= {"sign_p": nan, "test": "", "low_pp": rate[0], "high_pp": rate[1], "interval": rate[2]}
    return found | {"reading": effect_words(found | {"bad": int(arms[0].runs[0]["bad"].iloc[0])})}


def _over(arms: Sequence[Arm], value) -> float:
    """A number of each run, averaged over runs and then over models."""
    return float(np.mean([np.mean([value(run) for run in arm.runs]) for arm in arms]))


def _with(effect: Effect, name: str, interval: Interval | None = None) -> dict:
    low, high, _ = interval or effect.interval()
    stem = name.removesuffix("_difference")
    return {name: effect.estimate, f"{stem}_low": low, f"{stem}_high": high}


def _within(interval: Interval) -> Interval:
    """A probability's interval: t knows of no bounds by itself."""
    return max(interval[0], 0.0), min(interval[1], 1.0), interval[2]  # NaN stays


def _sign_test(moves: Effect, draws: int, seed: int) -> tuple[float, str]:
    cells = moves.cells.sort_index().to_numpy(dtype=float)
    if cells.shape[1] == 1:
        up, down = int((cells > 0).sum()), int((cells < 0).sum())
        return (float(stats.binomtest(up, up + down).pvalue) if up + down else 1.0), "sign test, exact"
    sums = np.nansum(cells * moves.weights / (~np.isnan(cells)).sum(axis=0), axis=1)
    p, _, test = sign_flips(sums * len(sums), draws, np.random.default_rng(seed))
    return p, test


_NUMBERS = (
    "mean_score_baseline", "mean_score_arm", "mean_score_difference", "mean_score_low", "mean_score_high",
    "superiority", "superiority_low", "superiority_high", "n_better", "n_worse", "n_same", "net_better_pp",
    "net_better_low_pp", "net_better_high_pp", "sign_p", "test", "baseline_lowest_share", "baseline_highest_share",
    "arm_lowest_share", "arm_highest_share", "rate_baseline", "rate_arm", "difference_pp", "low_pp", "high_pp",
    "interval", "ends", "reading", "reason",
)  # fmt: skip


def _nothing(lacking: str) -> dict:
    words = {"test": "", "interval": "", "ends": "", "reading": "not available", "reason": lacking}
    return dict.fromkeys(_NUMBERS, nan) | words
