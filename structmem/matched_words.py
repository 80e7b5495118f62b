"""Words about structures and RAG at equal leakage or equal use: axes, what lies outside the curve, the reading."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from .outcomes import setting_words, told_apart
from .tables import bound, signed

LEAKS, USES = "cross_domain", "beneficial_memory_usage"
_NAMES = {
    ("failure", "rate"): {LEAKS: "leakage", USES: "beneficial-memory failures"},
    ("failure", "mean"): {LEAKS: "mean leakage score", USES: "mean beneficial score"},
    ("echo", "rate"): {LEAKS: "echo rate, cross domain", USES: "echo rate, beneficial"},
    ("echo", "mean"): {LEAKS: "mean echo overlap, cross domain", USES: "mean echo overlap, beneficial"},
}  # fmt: skip


def outcome_words(kind: str, outcome: str, measure: str) -> str:
    """How prose and axes call an outcome: leakage only for failures of cross_domain."""
    return _NAMES[outcome, measure][kind]


def value_words(value: float, measure: str) -> str:
    """A rate in per cent, a mean as it is."""
    return f"{100 * value:.1f} %" if measure == "rate" else f"{value:.4f}"


def between_words(fitted: np.ndarray, at: float, settings: Sequence[str]) -> str:
    """Which settings of the fitted curve have a value, the first pair of neighbours around it, or one setting."""
    for j, (one, two) in enumerate(zip(fitted, fitted[1:], strict=False)):
        for place, value in ((j, one), (j + 1, two)):
            if abs(value - at) < 1e-9:
                return settings[place]
        if min(one, two) < at < max(one, two):
            return f"{settings[j]} and {settings[j + 1]}"
    return ""


def outside_words(arm: str, own: float, fitted: np.ndarray, kind: str, outcome: str, measure: str) -> str:
    """Why there is no number where an arm's value is below or above all of RAG's."""
    least, most = float(np.min(fitted)), float(np.max(fitted))
    side = "below" if own < least else "above"
    ends = f"{value_words(least, measure)} to {value_words(most, measure)}"
    what = outcome_words(kind, outcome, measure)
    return f"{arm} is outside the curve: {what} {value_words(own, measure)}, {side} RAG at every setting ({ends})"


def comparison_words(low: float, high: float, bad: int) -> str:
    """What an interval of arm − RAG shows; `bad` is +1 where a high value is bad, −1 where it is wanted."""
    if np.isnan(low):
        return "no interval"
    if low <= 0 <= high:
        return "not distinguishable from RAG"
    return "worse than RAG" if (low > 0) == (bad > 0) else "better than RAG"


def matched_reading(table: pd.DataFrame) -> None:
    """Print what a table of ``matched_differences`` does and does not support, arm by arm."""
    if not len(table):
        print("Nothing is matched.")
        return
    outcome, measure = table["outcome"].iloc[0], table["measure"].iloc[0]
    if outcome == "echo":
        print("The echo measure made these numbers (overlap of words): they show the pipeline, not an effect.")
    if table["arm"].str.contains("(embedding)", regex=False).any():
        print("Sorted by an embedding model: not the paper's method.")
    counts = table[["n_cross_domain", "n_beneficial"]].min()
    n = f"{counts['n_cross_domain']} cross_domain and {counts['n_beneficial']} beneficial entries at least"
    print(f"{n}; generations per entry: {'; '.join(dict.fromkeys(table['generations']))}.")
    for remark in dict.fromkeys(part for text in table["remark"] for part in text.split("; ") if part):
        print(f"{remark[0].upper()}{remark[1:]}.")
    print(f"RAG's curve: {table['shape'].iloc[0]}. Nothing is extrapolated.")
    for (curve, on), group in table.groupby(["curve", "matched_on"], sort=False):
        other = outcome_words(USES if on == LEAKS else LEAKS, outcome, measure)
        print(f"At equal {outcome_words(on, outcome, measure)}, RAG over {curve}; {other}, structure − RAG:")
        for row in group.to_dict("records"):
            print(f"  {_named(row, table)}: {_numbers(row, measure)}")
    print("Intervals are read one by one, each 95 %; several together hold less often.")


def _named(row: dict, table: pd.DataFrame) -> str:
    model = [row["model"]] if table["model"].nunique() > 1 else []
    twins = table[(table["arm"] == row["arm"]) & (table["curve"] == row["curve"])]
    return ", ".join([*model, row["arm"], *setting_words(row, told_apart(table, twins), table)])


def _numbers(row: dict, measure: str) -> str:
    if row["reason"]:
        return f"no number; {row['reason']}."
    if measure == "rate":
        value = f"{signed(row['difference_pp'])} pp"
        ends = [] if np.isnan(row["low_pp"]) else [bound(row["low_pp"]), bound(row["high_pp"])]
    else:
        value = f"{row['mean_difference']:+.3f}"
        ends = [] if np.isnan(row["mean_low"]) else [f"{row['mean_low']:+.3f}", f"{row['mean_high']:+.3f}"]
    interval = f" [{', '.join(ends)}]" if ends else f" (interval {row['interval']})"
    often = row["outside_share"] >= 0.025
    outside = f"; outside the curve in {100 * row['outside_share']:.0f} % of the draws" if often else ""
    return f"{value}{interval}, {row['reading']}{outside}".replace("-", "−") + "."
