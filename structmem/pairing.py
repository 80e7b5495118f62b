"""Arms matched with their baseline, entry by entry: the pairs behind every comparison."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import nan
from typing import NamedTuple

import pandas as pd

from .errors import choice
from .intervals import bounded, clustered_mean, mcnemar_exact, tango
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

CALLED_APART_HOURS = 24.0
# Settings outside the key that should not differ between an arm and its baseline.
_SETTINGS = (
    "model_options", "temperature", "top_p", "max_tokens", "reasoning_effort", "judge_options", "prompt_hash",
    "judge_prompt_hash", "benchmark_hash",
)  # fmt: skip


class Behind(NamedTuple):
    """What a row of differences is made of: its pairs, and all units of the two arms."""

    pairs: pd.DataFrame
    arm: pd.DataFrame
    baseline: pd.DataFrame


def compare(
    results: pd.DataFrame, by: list[str], baseline: str, outcome: str | None
) -> tuple[pd.DataFrame, list[Behind]]:
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
            row, pairs = _pair(mine, theirs, outcome)
            behind.append(Behind(pairs, mine, theirs))
            other = named | (theirs[own].iloc[0].to_dict() if len(theirs) else {})
            row["remark"] = said([_other_run(named, theirs), facts.dropped(named, other), row["remark"]])
            identity = {column: named[column] for column in shared} | {"arm": label} | {c: named[c] for c in own}
            identity |= {"baseline": baseline, "outcome": outcome}
            warning = said([facts.warning(named, other), *_gaps(mine, theirs)])
            counts = counts_behind(behind[-1:])
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


def _pair(mine: pd.DataFrame, theirs: pd.DataFrame, outcome: str) -> tuple[dict, pd.DataFrame]:
    verb = {"failure": "fails", "echo": "echoes"}[outcome]
    columns = ["entry_id", "failed", "failed_one", "mean_value"]
    of_arm, of_baseline = (side[columns].set_index("entry_id") for side in (mine, theirs))
    # One arm, one outcome per entry: anything else would multiply pairs.
    assert of_arm.index.is_unique and of_baseline.index.is_unique
    asked = of_arm.index.union(of_baseline.index)
    both = of_arm.add_suffix("_arm").join(of_baseline.add_suffix("_baseline"), how="inner")
    pairs = both.dropna(subset=["failed_arm", "failed_baseline"]).reset_index()
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
    ones, scores = (pairs[f"{what}_arm"] - pairs[f"{what}_baseline"] for what in ("failed_one", "mean_value"))
    one_low, one_high = 100 * low, 100 * high
    if (mine["expected"] > 1).any():
        one_low, one_high = bounded(*clustered_mean(100 * ones.to_numpy(dtype=float), pairs["entry_id"].to_numpy()))
    rate_baseline = pairs["failed_baseline"].mean()
    difference = 100 * (only_arm - only_baseline) / n if n else nan
    return {
        "n_pairs": n, "n_left_out": len(asked) - n, "n_generations": int(mine["expected"].iloc[0]),
        "rate_baseline": rate_baseline, "rate_arm": pairs["failed_arm"].mean(),
        "difference_pp": difference, "low_pp": 100 * low, "high_pp": 100 * high, "reduction_pp": 0.0 - difference,
        "relative_change_pct": difference / rate_baseline if n and rate_baseline else nan,
        f"n_only_baseline_{verb}": only_baseline, f"n_only_arm_{verb}": only_arm,
        **({"harmed_share": only_arm / n if n else nan} if verb == "fails" else {}),
        "mcnemar_p": mcnemar_exact(only_arm, only_baseline) if n else nan,
        "at_1_difference_pp": 100 * ones.mean(), "at_1_low_pp": one_low, "at_1_high_pp": one_high,
        "mean_score_difference": scores.mean(), "remark": remark,
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
        self.known: dict[tuple, dict] = {}  # a baseline is asked for once per arm

    def _of(self, named: dict) -> dict:
        key = tuple(named[name] for name in self.keys)
        if key not in self.known:
            group = self.groups.get(key)
            self.known[key] = {} if group is None else self._read(group)
        return self.known[key]

    def _read(self, group: pd.DataFrame) -> dict:
        return {
            "called": group["_called"].dropna().median() if "_called" in group else pd.NaT,
            "served": sorted(group["served_model"].dropna().astype(str).unique()) if "served_model" in group else [],
            "shown": _shown(group),
            "settings": {column: sorted(group[f"_{column}"].unique()) for column in self.settings},
        }  # fmt: skip

    def dropped(self, arm: dict, baseline: dict) -> str:
        """A remark where an arm or its baseline does not show all memories, so that more than the layout differs."""
        mine, theirs = (self._of(one).get("shown", nan) for one in (arm, baseline))
        said_of = f"shows {100 * mine:.3g} % of the memories" if mine < 1 or theirs < 1 else ""
        said_of += f", the baseline {100 * theirs:.3g} %" if theirs < 1 else ""
        return f"changes the information: {said_of}" if said_of else ""

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


def _shown(rows: pd.DataFrame) -> float:
    if not {"n_shown", "n_memories"} <= set(rows):
        return nan
    counts = rows[["n_shown", "n_memories"]].dropna().sum()
    return counts["n_shown"] / counts["n_memories"] if counts["n_memories"] else nan


def counts_behind(behind: list[Behind]) -> dict:
    """``counted`` of the arms and, as ``…_baseline``, of their baselines; a baseline that several share counts once."""
    found: dict = {}
    for side, suffix in (("arm", ""), ("baseline", "_baseline")):
        units = getattr(behind[0], side)
        if len(behind) > 1:
            units = pd.concat([getattr(one, side) for one in behind])
            units = units[~units.index.duplicated()]
        found |= {f"{name}{suffix}": value for name, value in counted(units).items()}
    return found


def with_numbers(table: pd.DataFrame) -> pd.DataFrame:
    """Thresholds as numbers again; arms without one have none."""
    if "threshold" not in table:
        return table
    return table.assign(threshold=pd.to_numeric(table["threshold"].mask(table["threshold"] == NONE)))


def said(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(filter(None, texts)))


def tells_apart(table: pd.DataFrame, column: str) -> bool:
    """Whether a setting takes several values; options and taxonomies count only within one structure and structurer."""
    if column in ("structurer_options", "taxonomy") and "structurer" in table:
        return bool((table.groupby(["structure", "structurer"], sort=False)[column].nunique() > 1).any())
    return table[column].nunique() > 1


def arm_keys(table: pd.DataFrame) -> list[str]:
    """What tells arms apart once models and their runs are taken together: failure type, arm, settings and K."""
    settings = [c for c in ARM if c in table and c not in ("model", "replicate", "partition_draw")]
    return ["failure_type", "arm", *settings, "n_generations"]


def shown_keys(table: pd.DataFrame, keys: list[str]) -> list[str]:
    """The keys worth a column: those that say what a row is, and the settings that take several values."""
    always = ("model", "failure_type", "arm", "threshold", "n_generations")
    kept = [column for column in keys if column in always or tells_apart(table, column)]
    # The arm's name says whether an embedding sorted; two models that did are told apart by their own column.
    several = "structurer" in table and bool((table.groupby("arm", sort=False)["structurer"].nunique() > 1).any())
    return [column for column in kept if column != "structure" and (several or column != "structurer")]


def by_arm(table: pd.DataFrame, behind: list[Behind]) -> Iterator[tuple[dict, pd.DataFrame, list[Behind]]]:
    """Per arm: its keys, its rows of the table (one per model and run), and what is behind each of them."""
    keys = arm_keys(table)
    for key, group in table.groupby(keys, sort=False):
        yield dict(zip(keys, key, strict=True)), group, [behind[position] for position in group.index]
