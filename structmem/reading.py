"""Cautious readings: sentences that follow from the numbers a notebook has just printed."""

from __future__ import annotations

import math

import pandas as pd

from .intervals import minimum_detectable_pp
from .outcomes import is_echo, setting_words, told_apart
from .stats import echo_rate, failure_rate


def rates(results: pd.DataFrame, by=("model", "structure")) -> pd.DataFrame:
    """`failure_rate`, or `echo_rate` where every row was checked by the offline ``echo`` measure.

    Returns
    -------
    DataFrame
        As those two; the column that holds the rate is named for what it is.
    """
    return echo_rate(results, by) if is_echo(results) else failure_rate(results, by)


def cautious_reading(results: pd.DataFrame, differences: pd.DataFrame) -> None:
    """Print what a table of paired differences does and does not support.

    Says first who scored the answers, then the size of difference that so many entries can detect, then each arm's
    difference with its interval: found or not found, equally plainly.
    """
    wanted = {"echo": "the offline echo measure (overlap of words)", "simulated": "a simulated judge"}
    for judge in sorted(results["judge"].dropna().unique()):
        if judge in wanted:
            print(f"Scored by {wanted[judge]}: these numbers show the pipeline, not an effect.")
    if set(results["structurer"].dropna()) & {"embedding"}:
        print("Sorted by an embedding model: not the paper's method.")
    if not len(differences):
        print("No arm has a baseline to be compared with.")
        return
    for (model, failure_type), table in differences.groupby(["model", "failure_type"], sort=False):
        _read(f"{model}, {failure_type}", table)


def _read(what: str, table: pd.DataFrame) -> None:
    compared = ~table["arm"].str.contains("A/A")
    arms = table[compared & (table["n_pairs"] > 0)]
    if not len(arms):
        why = "no entry is complete in both arms" if compared.any() else "there is no arm beside the baseline"
        print(f"{what}: {why}; nothing can be compared.")
        return
    n = int(arms["n_pairs"].min())
    only = [column for column in arms if column.startswith("n_only_")]
    discordant = float((arms[only].sum(axis=1) / arms["n_pairs"]).mean())
    print(f"{what}: {n} entries; {100 * discordant:.0f} % of them change outcome between arms on average.")
    rates = table.loc[table["n_pairs"] > 0, ["rate_baseline", "rate_arm"]].to_numpy(dtype=float)
    if (rates == 0).all() or (rates == 1).all():
        print(f"Every arm is at {100 * rates.flat[0]:.0f} %, where no difference can show.")
    if discordant > 0:
        least = minimum_detectable_pp(n, discordant)
        if math.isnan(least):
            print("With so few, no difference that fits this share could be detected with 80 % power.")
        else:
            print(f"With so many, 80 % power needs a true difference of about {least:.0f} pp or more.")
    for row in table.itertuples():
        differ = told_apart(table, table[table["arm"] == row.arm])
        name = ", ".join([row.arm, *setting_words(row._asdict(), differ)])
        if not row.n_pairs:
            print(f"  {name}: {row.remark}")
            continue
        if "A/A" in row.arm:
            verdict = "noise between two runs of the same arm"
        else:
            apart = row.low_pp > 0 or row.high_pp < 0
            verdict = "differs from the baseline" if apart else "is not distinguishable from the baseline"
        numbers = f"{row.difference_pp:+.1f} pp [{row.low_pp:+.1f}, {row.high_pp:+.1f}]".replace("-", "−")
        print(f"  {name}: {numbers}, {verdict}")
