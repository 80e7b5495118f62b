"""Ordinal scores in words: how much room a scale leaves, what an effect shows, and the cautious reading of a table."""

from __future__ import annotations

import numpy as np
import pandas as pd

from .comparisons import ALL_MODELS
from .outcomes import setting_words, told_apart
from .pairing import said
from .tables import bound, signed

CEILING = 0.95  # rate from which there is hardly room for a difference
NEAR_END = 0.8  # share of entries at one end of the scale from which there is little room on that side


def ends_words(shares: dict, ends: tuple, bad: int, baseline: str, arm: str) -> str:
    """Where so many entries are at one end of the scale that few can move beyond it; empty where there is room."""
    found = []
    for side, name in (("baseline", baseline), ("arm", arm)):
        for end, value in zip(("lowest", "highest"), ends, strict=True):
            share = shares[f"{side}_{end}_share"]
            if share >= NEAR_END:
                way = "worse" if (end == "highest") == (bad > 0) else "better"
                what = "ceiling" if end == "highest" else "floor"
                found.append(f"{what}: {100 * share:.0f} % of the entries of {name} score {value}, nothing is {way}")
    return said(found)


def effect_words(row: dict) -> str:
    """What the ordinal effect shows: 'better' only where its interval excludes ½ and no test contradicts it."""
    low, high, p = row["superiority_low"], row["superiority_high"], row["sign_p"]
    if np.isnan(low):
        return "as many answers score better as worse, and no interval" if row["superiority"] == 0.5 else "no interval"
    way = "lower" if (row["superiority"] > 0.5) == (row["bad"] > 0) else "higher"
    verdict = f"{'better' if row['superiority'] > 0.5 else 'worse'} ({way} scores)"
    if low <= 0.5 <= high:
        return "not distinguishable from the baseline by score"
    if not np.isnan(p) and p >= 0.05:
        return f"at the edge: single answers are {verdict}, the sign test of entries does not reject (p = {p:.3f})"
    return verdict


def ordinal_reading(table: pd.DataFrame) -> None:
    """Print what a table of ``ordinal_differences`` does and does not support, scores first and the rate last."""
    if not len(table):
        print("No arm has a baseline to be compared with.")
        return
    if table["arm"].str.contains("(embedding)", regex=False).any():
        print("Sorted by an embedding model: not the paper's method.")
    for reason in dict.fromkeys(table["reason"]):
        if reason:
            n = int((table["reason"] == reason).sum())
            print(f"{n} of {len(table)} rows: {reason}." if n < len(table) else f"{reason[0].upper()}{reason[1:]}.")
    changed = table[table["remark"].str.contains("changes the information") & (table["model"] != ALL_MODELS)]
    for row in changed.to_dict("records"):
        more = setting_words(row, told_apart(table, table[table["arm"] == row["arm"]]), table)
        print(f"{row['model']}, {', '.join([row['arm'], *more])}: {row['remark']}.")
    for row in table[table["reason"] == ""].to_dict("records"):
        more = setting_words(row, told_apart(table, table[table["arm"] == row["arm"]]), table)
        over = f"; {row['estimand']}" if row["model"] == ALL_MODELS else ""
        n = f"{row['n_entries']:g} entries, K {row['n_generations']}{over}"
        print(f"{row['model']}, {', '.join([row['arm'], *more])} ({n}): {row['reading']}.")
        better = _span("superiority", row, 100, ".0f", " %")
        step = _span("mean_score", row | {"mean_score": row["mean_score_difference"]}, 1, "+.2f")
        print(f"  its answer is better in {better} of pairs, ties half; mean score {step};")
        # With several runs or models an entry moves once in each of them.
        n_runs = row["n_runs"]
        of, each = (" entries", "") if n_runs == 1 else ("", f", an entry counted in each of {n_runs:g} runs")
        moved = f"{row['n_better']:g}{of} better, {row['n_worse']:g} worse, {row['n_same']:g} the same{each}"
        spread = "" if np.isnan(row["low_pp"]) else f" [{bound(row['low_pp'])}, {bound(row['high_pp'])}]"
        print(f"  {moved}; the rate {signed(row['difference_pp'])} pp{spread}.")
        at = [
            f"{100 * row[f'{side}_{end}_share']:.0f} %" for end in ("highest", "lowest") for side in ("baseline", "arm")
        ]
        print(
            f"  At the highest score {at[0]} of entries, {at[1]} with {row['arm']}; at the lowest {at[2]} and {at[3]}."
        )


def sycophancy_reading(ordinal: pd.DataFrame, published: pd.DataFrame) -> None:
    """Print ``ordinal_reading`` of one's own results, then what the published rates say, defence by defence.

    Parameters
    ----------
    ordinal : DataFrame
        As made by ``ordinal_differences``.
    published : DataFrame
        Rows of ``published_reductions`` for one or more defences.
    """
    ordinal_reading(ordinal)
    over = published[published["model"] == ALL_MODELS]
    for defence, rows in over.groupby("defence", sort=False):
        rate = 100 * rows["rate_baseline"].iloc[0]
        flat = published[(published["defence"] == defence) & (published["model"] != ALL_MODELS)]
        of = flat.drop_duplicates("model")["rate_baseline"]
        n = f"{int((of >= CEILING).sum())} of {len(of)} models at {100 * CEILING:g} % or more"
        print(f"Published, {defence}: flat fails {rate:.1f} % over {rows['n_models'].iloc[0]} models, {n}.")
        for row in rows.to_dict("records"):
            found = "not shown" if row["low_pp"] <= 0 <= row["high_pp"] else "the interval excludes 0"
            ends = f"[{bound(row['low_pp'])}, {bound(row['high_pp'])}]"
            print(f"  {row['structure']} {signed(row['difference_pp'])} pp {ends}: {found}")


def _span(name: str, row: dict, times: float, how: str, unit: str = "") -> str:
    """An estimate with its interval, as far as there is one."""
    low, high = times * row[f"{name}_low"], times * row[f"{name}_high"]
    interval = "" if np.isnan(low) else f" [{low:{how}}, {high:{how}}]"
    return f"{times * row[name]:{how}}{unit}{interval}".replace("-", "−")
