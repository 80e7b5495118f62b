"""Arms against a baseline, entry by entry: paired differences, and reductions per model and over models."""

from __future__ import annotations

from collections.abc import Iterable
from math import nan
from typing import NamedTuple

import numpy as np
import pandas as pd

from .errors import choice
from .intervals import clustered_mean, mcnemar_exact, over_models, tango
from .missing import MISSING_GAP_PP, TRUNCATED_GAP_PP, differ
from .outcomes import (
    ARM,
    NONE,
    OF_STRUCTURE,
    counted,
    display_structure,
    is_echo,
    judged_rows,
    keep_none,
    sort_arms,
    unit_rows,
)  # fmt: skip

ALL_MODELS = "all models"
CALLED_APART_HOURS = 24.0
# Settings outside the key that should not differ between an arm and its baseline.
_SETTINGS = (
    "model_options", "temperature", "top_p", "max_tokens", "reasoning_effort", "judge_options", "prompt_hash",
    "judge_prompt_hash", "benchmark_hash",
)  # fmt: skip


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
        pairs, in which only the arm fails; ``mcnemar_p`` (exact, two-sided); ``remark`` and ``warning`` in words
        (also where arm and baseline differ in what is missing or truncated: see ``missing.differ``).

    Raises
    ------
    InputError
        As ``failure_rate``; also when the baseline is not among the structures.
    """
    by = [by] if isinstance(by, str) else list(by)
    table, _ = _compare(results, by, baseline, outcome)
    kept = (*by, "model", "structure", "structurer", "partition_draw", "replicate", "threshold")
    spare = [column for column in ARM if column in table and column not in kept and not _tells_apart(table, column)]
    return _with_numbers(table.drop(columns=spare))


def reductions(results: pd.DataFrame, baseline: str = "flat", outcome: str | None = None) -> pd.DataFrame:
    """Reduction of the rate against the baseline: per model over its runs, then over models.

    A run is one replicate and partition draw. Per model: mean and standard deviation (n − 1) over runs. The interval
    is about *these models, new entries*: Tango's with one run, a t interval over entries of their mean difference
    with several. Rows 'all models' hold mean and standard deviation (n − 1) over the models' reductions, each model
    weighing the same, and a t interval about *new models*, which assumes that the models are exchangeable draws
    (exploratory with a handful).
    Arms of another K or threshold have rows of their own. A/A rows come first.

    Returns
    -------
    DataFrame
        One row per model (then 'all models') × arm × failure type: ``baseline``, ``outcome``, ``reduction_pp``,
        ``sd_pp`` (NaN with one run: ``sd_note`` says 'n/a (1 run)'), ``n_runs``, ``n_models``, ``n_entries`` (pairs
        of the smallest run), ``n_generations`` (K), ``threshold``, ``low_pp``, ``high_pp``, ``interval``; ``n_asked``,
        ``n_scored``, ``reasons``, ``truncated_share`` over all runs, and ``…_baseline``, as in ``paired_differences``;
        ``remark`` (also names runs and models that have no pairs and are not in the mean), ``warning``.
    """
    outcome = outcome or ("echo" if is_echo(results) else "failure")
    table, behind = _compare(results, ["model"], baseline, outcome)
    if not len(table):
        return table
    over_runs = ("replicate", "partition_draw")
    settings = [c for c in ARM if c in table and c not in ("model", *over_runs)]
    keys = ["model", "failure_type", "arm", *settings, "n_generations"]
    rows, units = [], []
    for key, group in table.groupby(keys, sort=False):
        found = group[group["n_pairs"] > 0]
        units.append([behind[position] for position in group.index])
        low, high, interval = nan, nan, "not available: no pairs"
        if len(found) == 1:
            low, high, interval = -found["high_pp"].iloc[0], -found["low_pp"].iloc[0], "Tango, paired entries"
        elif len(found) > 1:
            pairs = pd.concat([behind[position].pairs for position in found.index])
            gain = 100 * (pairs["failed_baseline"] - pairs["failed_arm"]).to_numpy(dtype=float)
            low, high = clustered_mean(gain, pairs["entry_id"].to_numpy())
            interval = "t over entries" if not np.isnan(low) else "not available: one entry or no variation"
        rows.append(
            dict(zip(keys, key, strict=True))
            | {"baseline": baseline, "outcome": outcome}
            | _spread(found["reduction_pp"], "run")
            | {"n_runs": len(found), "n_models": 1, "n_entries": int(found["n_pairs"].min()) if len(found) else 0}
            | {"low_pp": low, "high_pp": high, "interval": interval}
            | _counts(units[-1])
            | {"remark": _said([_left_out(group["n_pairs"] == 0, "run") if len(found) else "", *group["remark"]])}
            | {"warning": _said(group["warning"])}
        )
    models = pd.DataFrame(rows)
    for key, group in models.groupby(keys[1:], sort=False):
        over = over_models(group["reduction_pp"])
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
            | {"low_pp": over.low, "high_pp": over.high, "interval": interval}
            | _counts([one for position in group.index for one in units[position]])
            | {"remark": _left_out(group["n_runs"] == 0, "model") if over.n else ""}
            | {"warning": f"warnings for {warned} of {len(group)} models" if (warned := _warned(group)) else ""}
        )
    result = pd.DataFrame(rows)
    always = ("model", "failure_type", "arm", "threshold", "n_generations")
    kept = [column for column in keys if column in always or _tells_apart(result, column)]
    kept = [column for column in kept if column not in ("structure", "structurer")]
    # Stable: within a failure type the rows stay as made, models first and their summary last.
    order = sort_arms(result[["failure_type"]].assign(position=range(len(result))), ["failure_type", "position"])
    shown = [*kept, *[column for column in result if column not in keys]]
    return _with_numbers(result.iloc[order["position"]].reset_index(drop=True)[shown])


def _with_numbers(table: pd.DataFrame) -> pd.DataFrame:
    """Thresholds as numbers again; arms without one have none."""
    if "threshold" not in table:
        return table
    return table.assign(threshold=pd.to_numeric(table["threshold"].mask(table["threshold"] == NONE)))


def _left_out(lost: pd.Series, one: str) -> str:
    return f"{int(lost.sum())} of {len(lost)} {one}s without pairs, not in the mean" if lost.any() else ""


def _warned(group: pd.DataFrame) -> int:
    return int((group["warning"] != "").sum())


def _said(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(filter(None, texts)))


def _tells_apart(table: pd.DataFrame, column: str) -> bool:
    """Whether a setting takes several values; options and taxonomies count only within one structure and structurer."""
    if column in ("structurer_options", "taxonomy") and "structurer" in table:
        return bool((table.groupby(["structure", "structurer"], sort=False)[column].nunique() > 1).any())
    return table[column].nunique() > 1


def _spread(values: pd.Series, one: str) -> dict:
    n = len(values)
    note = f"n − 1, {n} {one}s" if n > 1 else f"n/a ({n} {one}{'' if n else 's'})"
    return {"reduction_pp": values.mean(), "sd_pp": values.std(ddof=1) if n > 1 else nan, "sd_note": note}


class _Behind(NamedTuple):
    """What a row of differences is made of: its pairs, and all units of the two arms."""

    pairs: pd.DataFrame
    arm: pd.DataFrame
    baseline: pd.DataFrame


def _counts(behind: list[_Behind]) -> dict:
    """``counted`` of the arms and, as ``…_baseline``, of their baselines; a baseline that several share counts once."""
    found: dict = {}
    for side, suffix in (("arm", ""), ("baseline", "_baseline")):
        units = getattr(behind[0], side)
        if len(behind) > 1:
            units = pd.concat([getattr(one, side) for one in behind])
            units = units[~units.index.duplicated()]
        found |= {f"{name}{suffix}": value for name, value in counted(units).items()}
    return found


def _compare(
    results: pd.DataFrame, by: list[str], baseline: str, outcome: str | None
) -> tuple[pd.DataFrame, list[_Behind]]:
    """The full table of paired differences and, row by row, what is behind it."""
    outcome = outcome or ("echo" if is_echo(results) else "failure")
    units, arm = unit_rows(results, by, outcome)
    if len(units) and baseline not in set(units["structure"]):
        raise choice("baseline", baseline, set(units["structure"]))
    own = [column for column in OF_STRUCTURE if column in arm]
    shared = [c for c in dict.fromkeys([*by, "model", "failure_type", *arm]) if c not in OF_STRUCTURE]
    facts = _Facts(judged_rows(results, outcome), [column for column in (*shared, *own) if column != "threshold"])
    rows, behind = [], []
    for context, group in units.groupby(shared, sort=False):
        flat = group[group["structure"] == baseline]
        for key, mine in group.groupby(own, sort=False):
            named = dict(zip(shared, context, strict=True)) | dict(zip(own, key, strict=True))
            theirs = _baseline_of(named, flat, baseline)
            if theirs is None:
                continue
            aa = named["structure"] == baseline
            label = f"{baseline} (A/A)" if aa else display_structure(named["structure"], named.get("structurer"))
            row, pairs = _pair(mine, theirs, {"failure": "fails", "echo": "echoes"}[outcome])
            behind.append(_Behind(pairs, mine, theirs))
            if other_run := _other_run(named, theirs):
                row["remark"] = _said([other_run, row["remark"]])
            other = named | (theirs[own].iloc[0].to_dict() if len(theirs) else {})
            identity = {column: named[column] for column in shared} | {"arm": label} | {c: named[c] for c in own}
            identity |= {"baseline": baseline, "outcome": outcome}
            warning = _said([facts.warning(named, other), *_gaps(mine, theirs)])
            counts = _counts(behind[-1:])
            rows.append(identity | row | counts | {"warning": warning, "order": (not aa, len(rows))})
    if not rows:
        return pd.DataFrame(), []
    table = pd.DataFrame(rows)
    aa_first = table.pop("order").map(lambda order: int(order[0]))
    table = table.assign(aa=aa_first, position=range(len(table)))
    table = sort_arms(table, ["failure_type", *shared, "aa", *own])
    order = table.pop("position")
    return table.drop(columns="aa"), [behind[position] for position in order]


def _gaps(mine: pd.DataFrame, theirs: pd.DataFrame) -> list[str]:
    """Words for an arm and a baseline that differ in what is missing or truncated."""
    found = []
    for what, some, of, gap in (
        ("unscored", lambda units: units["expected"].sum() - units["scored"].sum(), "expected", MISSING_GAP_PP),
        ("truncated", lambda units: units["truncated"].sum(), "answered", TRUNCATED_GAP_PP),
    ):
        (here, n_here), (there, n_there) = ((int(some(side)), int(side[of].sum())) for side in (mine, theirs))
        if differ(here, n_here, there, n_there, gap):
            found.append(f"{100 * here / n_here:.1f} % {what}, the baseline {100 * there / n_there:.1f} %")
    return found


def _baseline_of(named: dict, flat: pd.DataFrame, baseline: str) -> pd.DataFrame | None:
    """The baseline's units that an arm is compared with; None for the baseline's first replicate itself."""
    itself = named["structure"] == baseline
    for column in ("structurer", "structurer_options", "taxonomy", "partition_draw"):
        if column in flat and flat[column].nunique() > 1:
            flat = flat[flat[column] == named[column]]
    if "replicate" not in flat or not len(flat):
        return None if itself else flat
    first = min(flat["replicate"], key=lambda replicate: (isinstance(replicate, str), replicate))
    if itself and named["replicate"] == first:
        return None
    same = named["replicate"] in set(flat["replicate"]) and not itself
    return flat[flat["replicate"] == (named["replicate"] if same else first)]


def _other_run(named: dict, theirs: pd.DataFrame) -> str:
    """A remark where the first run of the baseline is missing, so that a repetition of it stands in."""
    found = theirs["replicate"].iloc[0] if "replicate" in theirs and len(theirs) else 0
    if found in (0, NONE) or found == named.get("replicate") or named["structure"] == theirs["structure"].iloc[0]:
        return ""
    return f"the baseline's replicate 0 is missing; its replicate {found} (A/A) stands in"


def _pair(mine: pd.DataFrame, theirs: pd.DataFrame, verb: str) -> tuple[dict, pd.DataFrame]:
    of_arm, of_baseline = (dict(zip(side["entry_id"], side["failed"], strict=True)) for side in (mine, theirs))
    # One arm, one outcome per entry: anything else would multiply pairs.
    assert len(of_arm) == len(mine) and len(of_baseline) == len(theirs)
    asked = of_arm.keys() | of_baseline.keys()
    both = [(entry, of_arm[entry], of_baseline[entry]) for entry in of_arm if entry in of_baseline]
    pairs = pd.DataFrame(both, columns=["entry_id", "failed_arm", "failed_baseline"]).dropna()
    remark = "" if len(pairs) else "no entry is complete in both arms"
    if not len(theirs):
        remark = "no baseline under the same settings"
    elif mine["expected"].iloc[0] != theirs["expected"].iloc[0]:
        # The maximum over 3 generations and over 1 are different quantities.
        pairs = pairs.iloc[:0]
        remark = f"not comparable: K = {mine['expected'].iloc[0]}, the baseline has {theirs['expected'].iloc[0]}"
    n = len(pairs)
    only_arm = int((pairs["failed_arm"] > pairs["failed_baseline"]).sum())
    only_baseline = int((pairs["failed_arm"] < pairs["failed_baseline"]).sum())
    if n and only_arm + only_baseline == 0:
        remark = "no discordant pairs"
    low, high = tango(only_arm, only_baseline, n)
    rate_baseline = pairs["failed_baseline"].mean()
    difference = 100 * (only_arm - only_baseline) / n if n else nan
    return {
        "n_pairs": n, "n_left_out": len(asked) - n, "n_generations": int(mine["expected"].iloc[0]),
        "rate_baseline": rate_baseline, "rate_arm": pairs["failed_arm"].mean(),
        "difference_pp": difference, "low_pp": 100 * low, "high_pp": 100 * high, "reduction_pp": 0.0 - difference,
        "relative_change_pct": difference / rate_baseline if n and rate_baseline else nan,
        f"n_only_baseline_{verb}": only_baseline, f"n_only_arm_{verb}": only_arm,
        **({"harmed_share": only_arm / n if n else nan} if verb == "fails" else {}),
        "mcnemar_p": mcnemar_exact(only_arm, only_baseline) if n else nan, "remark": remark,
    }, pairs  # fmt: skip


def _sorted_otherwise(arm: dict, baseline: dict) -> list[str]:
    """Words for arms whose memories were sorted by someone else, or into other domains, than their baseline's."""
    found = []
    for column, verb in (("structurer", "sorted by"), ("taxonomy", "sorted into")):
        mine, theirs = arm.get(column, NONE), baseline.get(column, NONE)
        if NONE not in (mine, theirs) and mine != theirs:
            found.append(f"{verb} {mine}, the baseline {verb.split()[1]} {theirs}")
    return found


class _Facts:
    """Per arm: when its calls were made, who served them, and its settings."""

    def __init__(self, rows: pd.DataFrame, keys: list[str]):
        self.keys = [key for key in keys if key in rows]
        rows = keep_none(rows, self.keys)
        self.settings = [column for column in _SETTINGS if column in rows]
        texts = {f"_{c}": rows[c].astype(object).where(rows[c].notna(), "default").astype(str) for c in self.settings}
        if "called_at" in rows:
            texts["_called"] = pd.to_datetime(rows["called_at"], utc=True, format="ISO8601")
        self.groups = dict(iter(rows.assign(**texts).groupby(self.keys, sort=False)))

    def _of(self, named: dict) -> dict:
        group = self.groups.get(tuple(named[key] for key in self.keys))
        if group is None:
            return {}
        return {
            "called": group["_called"].dropna().median() if "_called" in group else pd.NaT,
            "served": sorted(set(group["served_model"].dropna().astype(str))) if "served_model" in group else [],
            "settings": {column: sorted(set(group[f"_{column}"])) for column in self.settings},
        }  # fmt: skip

    def warning(self, arm: dict, baseline: dict) -> str:
        """What makes an arm and its baseline less than comparable, in words; empty if nothing does."""
        found = _sorted_otherwise(arm, baseline)
        arm, baseline = self._of(arm), self._of(baseline)
        if not arm or not baseline:
            return "; ".join(found)
        hours = abs((arm["called"] - baseline["called"]).total_seconds()) / 3600
        if hours > CALLED_APART_HOURS:  # false for NaN
            found.append(f"called {hours:.0f} h apart from its baseline")
        if arm["served"] and baseline["served"] and arm["served"] != baseline["served"]:
            found.append(f"served by {', '.join(arm['served'])}, the baseline by {', '.join(baseline['served'])}")
        for column in self.settings:
            mine, theirs = arm["settings"][column], baseline["settings"][column]
            if mine != theirs:
                short = ["/".join(value[:24] for value in values) for values in (mine, theirs)]
                found.append(f"{column} {short[0]}, the baseline {short[1]}")
        return "; ".join(found)
