"""Arms against a baseline: paired differences, reductions per model and over models, and which entries change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from math import nan

import numpy as np
import pandas as pd

from .analysis_plan import ESTIMANDS
from .clusters import MOVER, TANGO, mover
from .errors import InputError
from .intervals import bounded, over_models
from .outcomes import ARM, is_echo, sort_arms
from .pairing import arm_keys, by_arm, compare, counts_behind, said, shown_keys, tells_apart, with_numbers
from .stamping import stamped

ALL_MODELS = "all models"
HARMED, HELPED = "harmed", "helped"
THESE_MODELS, NEW_MODELS = ESTIMANDS


def groups_by_arm(table: pd.DataFrame) -> Iterator[tuple[dict[str, object], pd.DataFrame]]:
    """Rows of `compare` by arm, for each model and then, if there are several, for all of them together."""
    if not len(table):
        return
    keys = arm_keys(table)
    together = [(ALL_MODELS, table)] if table["model"].nunique() > 1 else []
    for model, of_model in [*table.groupby("model", sort=False), *together]:
        for key, group in of_model.groupby(keys, sort=False):
            yield {"model": model} | dict(zip(keys, key, strict=True)), group


def paired_differences(
    results: pd.DataFrame, by: str | Iterable[str] = ("model",), baseline: str = "flat", outcome: str | None = None
) -> pd.DataFrame:
    """Each arm against the baseline, on the entries that are complete in both.

    Arms are compared only under the same model, renderer, placement, defence, system prompt, judge and threshold. An
    arm's replicate r meets the baseline's replicate r where there is one, else its first. The baseline's other
    replicates against its first are the A/A rows, which come first: what they show is noise.

    Parameters
    ----------
    results : DataFrame
        One row per generation.
    by : column name or names
        Subgroups, for example ``("model", "memory_domain")``. Models are never pooled here; see ``reductions``.
    baseline : str
        A structure in the results.
    outcome : 'failure', 'echo' or None
        None: 'echo' where every row was checked by the echo measure, else 'failure'.

    Returns
    -------
    DataFrame
        One row per group and arm. ``arm`` is the display name (``flat (A/A)``, ``dynamic (embedding)``); ``n_pairs``
        entries, ``n_left_out`` (asked in either arm, not complete in both), ``n_generations`` (K), ``threshold``;
        ``n_asked`` rows of the arm, ``n_scored`` of them, the ``reasons`` of the others, and ``truncated_share`` of its
        answers, all with ``…_baseline`` beside them;
        ``rate_baseline``, ``rate_arm`` in [0, 1]; ``difference_pp`` = arm − baseline with ``low_pp``, ``high_pp``
        (95 %, Tango's score interval for paired proportions); ``reduction_pp`` = −difference_pp;
        ``relative_change_pct``; the discordant counts ``n_only_baseline_fails`` and ``n_only_arm_fails``
        (``…_echoes`` for echo, where no side is harmed: an echo is wanted in beneficial entries); ``harmed_share`` of
        pairs, in which only the arm fails, and ``harmed``, the ids of their entries, sorted and separated by blanks
        (``harmed_entries`` lists them over models and runs); ``mcnemar_p`` (exact, two-sided); ``at_1_difference_pp``
        (FR@1: the mean over generations) with ``at_1_low_pp``, ``at_1_high_pp`` (t over entries; with one generation
        Tango's) and ``mean_score_difference`` (echo: of the overlap); ``remark`` and
        ``warning`` in words (also where arm and baseline differ in what is missing or truncated: see
        ``missing.differ``).

    Raises
    ------
    InputError
        As ``failure_rate``; also when the baseline is not among the structures.
    """
    by = [by] if isinstance(by, str) else list(by)
    table, behind = compare(results, by, baseline, outcome)
    if "harmed_share" in table:
        harmed = [" ".join(map(str, sorted(_changed(one.pairs, HARMED)))) for one in behind]
        table.insert(table.columns.get_loc("harmed_share") + 1, "harmed", harmed)
    if len(table):
        never = table["rate_baseline"] == 0
        table["remark"] = [
            said([remark, "no relative change: the baseline's rate is 0" if zero else ""])
            for remark, zero in zip(table["remark"], never, strict=True)
        ]
    kept = (*by, "model", "structure", "structurer", "partition_draw", "replicate", "threshold")
    spare = [column for column in ARM if column in table and column not in kept and not tells_apart(table, column)]
    return stamped(with_numbers(table.drop(columns=spare)), results)


def reductions(results: pd.DataFrame, baseline: str = "flat", outcome: str | None = None) -> pd.DataFrame:
    """Reduction of the rate against the baseline: per model over its runs, then over models.

    A run is one replicate and partition draw. Per model: mean and standard deviation (n − 1) over runs. The interval
    is about *these models, new entries*: Tango's with one run; with several, those of all runs combined, with the
    correlations of the runs over entries (MOVER: see ``clusters.mover``), each run weighing the same. Rows
    'all models' hold mean and standard deviation (n − 1) over the models' reductions, each model weighing the same, and
    a t interval about *new models*, which assumes that the models are exchangeable draws (exploratory with a handful).
    Arms of another K or threshold have rows of their own. A/A rows come first.

    Returns
    -------
    DataFrame
        One row per model (then 'all models') × arm × failure type: ``baseline``, ``outcome``, ``reduction_pp``,
        ``sd_pp`` (NaN with one run: ``sd_note`` says 'n/a (1 run)'), ``n_runs``, ``n_models``, ``n_entries`` (pairs
        of the smallest run), ``n_generations`` (K), ``threshold``, ``low_pp``, ``high_pp``, ``interval``, ``estimand``;
        ``n_asked``, ``n_scored``, ``reasons``, ``truncated_share`` over all runs, and ``…_baseline``, as in
        ``paired_differences``; ``remark`` (also names runs and models that have no pairs and are not in the
        mean), ``warning``.
    """
    outcome = outcome or ("echo" if is_echo(results) else "failure")
    table, behind = compare(results, ["model"], baseline, outcome)
    if not len(table):
        return stamped(table, results)
    keys = ["model", *arm_keys(table)]
    rows, units = [], []
    for key, group in table.groupby(keys, sort=False):
        found = group[group["n_pairs"] > 0]
        units.append([behind[position] for position in group.index])
        low, high, interval = nan, nan, "not available: no pairs"
        if len(found) == 1:
            low, high, interval = -found["high_pp"].iloc[0], -found["low_pp"].iloc[0], TANGO
        elif len(found) > 1:
            runs = [behind[position].pairs.set_index("entry_id").astype(float) for position in found.index]
            gains = pd.concat([run["failed_baseline"] - run["failed_arm"] for run in runs], axis=1)
            ends = mover(gains.to_numpy(), np.full(len(runs), 1 / len(runs)))
            low, high, interval = 100 * ends[0], 100 * ends[1], MOVER
        rows.append(
            dict(zip(keys, key, strict=True))
            | {"baseline": baseline, "outcome": outcome}
            | _spread(found["reduction_pp"], "run")
            | {"n_runs": len(found), "n_models": 1, "n_entries": int(found["n_pairs"].min()) if len(found) else 0}
            | {"low_pp": low, "high_pp": high, "interval": interval, "estimand": THESE_MODELS}
            | counts_behind(units[-1])
            | {"remark": said([_left_out(group["n_pairs"] == 0, "run") if len(found) else "", *group["remark"]])}
            | {"warning": said(group["warning"])}
        )
    models = pd.DataFrame(rows)
    for key, group in models.groupby(keys[1:], sort=False):
        over = over_models(group["reduction_pp"])
        low, high = bounded(over.low, over.high)
        interval = "t over models, assumed exchangeable"
        if np.isnan(over.low):
            why = "no variation" if over.n > 1 else "one model" if over.n else "no model with pairs"
            interval = f"not available: {why}"
        rows.append(
            {"model": ALL_MODELS, "baseline": baseline, "outcome": outcome}
            | dict(zip(keys[1:], key, strict=True))
            | _spread(group["reduction_pp"].dropna(), "model")
            | {"n_runs": int(group["n_runs"].sum()), "n_models": over.n}
            | {"n_entries": int(group.loc[group["n_runs"] > 0, "n_entries"].min()) if over.n else 0}
            | {"low_pp": low, "high_pp": high, "interval": interval, "estimand": NEW_MODELS}
            | counts_behind([one for position in group.index for one in units[position]])
            | {"remark": _left_out(group["n_runs"] == 0, "model") if over.n else ""}
            | {"warning": f"warnings for {warned} of {len(group)} models" if (warned := _warned(group)) else ""}
        )
    result = pd.DataFrame(rows)
    # Stable: within a failure type the rows stay as made, models first and their summary last.
    order = sort_arms(result[["failure_type"]].assign(position=range(len(result))), ["failure_type", "position"])
    shown = [*shown_keys(result, keys), *[column for column in result if column not in keys]]
    return stamped(with_numbers(result.iloc[order["position"]].reset_index(drop=True)[shown]), results)


def harmed_entries(results: pd.DataFrame, baseline: str = "flat") -> pd.DataFrame:
    """Which entries each arm harms (only the arm fails) and which it helps (only the baseline fails).

    Pairs are matched as in ``paired_differences``, and counted over all models and their runs. An entry that is harmed
    in one model or run and helped in another has a row of each. Some change by chance alone: what the A/A arm 'harms'
    shows how many.

    Returns
    -------
    DataFrame
        One row per failure type × arm (× settings that differ) × ``outcome_change`` ('harmed' or 'helped') × entry,
        the entries that change most often first: ``n_pairs`` (models × runs in which the entry is complete in both
        arms), ``n_changed`` of them and ``changed_share`` in [0, 1]; ``n_models`` in which it changes at least once,
        and ``model_names``. Entries that never change have no row.

    Raises
    ------
    InputError
        As ``paired_differences``; also for results of the offline ``echo`` measure, whose echoes harm nobody.
    """
    if is_echo(results):
        raise InputError(
            "harmed_entries needs failures: every row was judged by 'echo', and an echo is wanted in beneficial "
            "entries. paired_differences counts the discordant pairs of echoes."
        )
    table, behind = compare(results, ["model"], baseline, "failure")
    columns = [
        "outcome_change",
        "entry_id",
        "n_pairs",
        "n_changed",
        "changed_share",
        "n_models",
        "model_names",
        "baseline",
    ]
    if not len(table):
        return stamped(pd.DataFrame(columns=["failure_type", "arm", *columns]), results)
    rows = []
    for named, group, found in by_arm(table, behind):
        n_pairs = Counter(entry for one in found for entry in one.pairs["entry_id"])
        for change in (HARMED, HELPED):
            where: dict = {}
            for model, one in zip(group["model"], found, strict=True):
                for entry in _changed(one.pairs, change):
                    where.setdefault(entry, []).append(model)
            for entry in sorted(where, key=lambda entry: (-len(where[entry]) / n_pairs[entry], str(entry))):
                models = list(dict.fromkeys(where[entry]))
                counts = n_pairs[entry], len(where[entry]), len(where[entry]) / n_pairs[entry]
                said_of = (change, entry, *counts, len(models), ", ".join(map(str, models)), baseline)
                rows.append(named | dict(zip(columns, said_of, strict=True)))
    result = pd.DataFrame(rows, columns=[*arm_keys(table), *columns])
    return stamped(with_numbers(result[[*shown_keys(table, arm_keys(table)), *columns]]), results)


def _changed(pairs: pd.DataFrame, change: str) -> list:
    """Entries that only the arm fails ('harmed'), or only the baseline ('helped')."""
    gap = pairs["failed_arm"] - pairs["failed_baseline"]
    return [entry for entry in pairs["entry_id"][gap > 0 if change == HARMED else gap < 0]]


def _left_out(lost: pd.Series, one: str) -> str:
    return f"{int(lost.sum())} of {len(lost)} {one}s without pairs, not in the mean" if lost.any() else ""


def _warned(group: pd.DataFrame) -> int:
    return int((group["warning"] != "").sum())


def _spread(values: pd.Series, one: str) -> dict:
    n = len(values)
    note = f"n − 1, {n} {one}s" if n > 1 else f"n/a ({n} {one}{'' if n else 's'})"
    return {"reduction_pp": values.mean(), "sd_pp": values.std(ddof=1) if n > 1 else nan, "sd_note": note}
