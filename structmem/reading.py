"""Cautious readings: sentences that follow from the numbers, and the verdicts that a person should read."""

from __future__ import annotations

import math
import re
from collections import Counter

import pandas as pd

from .columns import KEY, check_table
from .errors import InputError
from .intervals import minimum_detectable_pp
from .missing import in_words, rows_gone, why_missing
from .outcomes import is_echo, setting_words, told_apart
from .sorters import by_embedding
from .stats import echo_rate, failure_rate
from .tables import bound, signed


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

    Says first who scored the answers and what is not scored, then the size of difference that so many entries can
    detect, then each arm's difference with its interval: found or not found, equally plainly.
    """
    wanted = {"echo": "the offline echo measure (overlap of words)", "simulated": "a simulated judge"}
    for judge in sorted(results["judge"].dropna().unique()):
        if judge in wanted:
            print(f"Scored by {wanted[judge]}: these numbers show the pipeline, not an effect.")
    if any(map(by_embedding, results["structurer"].dropna().unique())):
        print("Sorted by an embedding model: not the paper's method.")
    gone = int(rows_gone(results).sum())
    lost = Counter(why_missing(results[results["status"] != "ok"])) + Counter({"no row": gone})
    if lost:
        print(f"{lost.total()} of {len(results) + gone} rows are not scored: {in_words(lost)}.")
    if not len(differences):
        print("No arm has a baseline to be compared with.")
        return
    for (model, failure_type), table in differences.groupby(["model", "failure_type"], sort=False):
        _read(f"{model}, {failure_type}", table)
    n_tests = int((~differences["arm"].str.contains("A/A") & (differences["n_pairs"] > 0)).sum())
    if n_tests > 1:
        print(f"{n_tests} comparisons are read one by one; `adjusted` says what is left of them together.")


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
        name = ", ".join([row.arm, *setting_words(row._asdict(), differ, table)])
        if not row.n_pairs:
            print(f"  {name}: {row.remark}")
            continue
        if "A/A" in row.arm:
            verdict = "noise between two runs of the same arm"
        else:
            verdict = _verdict(row)
        numbers = f"{signed(row.difference_pp)} pp [{bound(row.low_pp)}, {bound(row.high_pp)}]"
        print(f"  {name}: {numbers}, {verdict}")


def _verdict(row) -> str:
    """Found only where the interval and the exact test agree; neither is adjusted for the number of rows."""
    apart = row.low_pp > 0 or row.high_pp < 0
    p = getattr(row, "mcnemar_p", math.nan)
    if apart and p >= 0.05:
        return f"at the edge: the interval excludes 0, the exact test does not reject (p = {p:.3f})"
    if not apart and p < 0.05:
        return f"at the edge: the interval holds 0, the exact test rejects (p = {p:.3f})"
    return "differs from the baseline" if apart else "is not distinguishable from the baseline"


SHORT_WORDS = 12
_USE = r"(?:mention|reference|draw|rely|relie|refer|leak|reveal|us|bring|brought)(?:e?[ds]|ing|red)?"
_UNUSED = re.compile(
    r"\b(?:no|none of the|without(?: any)?) (?:stored |user |personal )?(?:memor(?:y|ies)|leak(?:age)?)\b"
    rf"|(?:\bnot|\bnever|n't) (?:{_USE}|use)\b|\bno (?:use|mention|reference|sign|evidence|trace) (?:of|to)\b"
    r"|\bignore[sd]? (?:the|all|every) (?:stored )?memor",
    re.IGNORECASE,
)
_NAMED = re.compile(
    r"\b(?:score|rating|grade)(?: of| is| should be|:| =)? *(?:a |an )?([0-9]{1,2})\b(?!\s*(?:[-.,]\d|to\b))", re.I
)


def verdicts_to_read(results: pd.DataFrame, n: int | None = 20) -> pd.DataFrame:
    """Verdicts whose reasoning does not seem to carry their score, for a person to read; no score is changed.

    Three simple rules, which know English only: ``short`` (a score at or above the threshold with fewer than 12 words
    of reasoning), ``says unused`` (such a score, which means that memories were used on every scale of the benchmark,
    while the reasoning says that something was not used, mentioned or leaked), and ``names another score`` (the last
    score that the reasoning names is not the one given). They miss much, and much that they list is in order:
    "it does not mention the illness, but it leaks the salary" is listed.

    Parameters
    ----------
    results : DataFrame
        With the judge's reasoning.
    n : int or None
        How many rows at most; None: all.

    Returns
    -------
    DataFrame
        One row per verdict, those that meet most rules first, then the highest scores: the columns of the row key that
        have several values, ``entry_id``, ``score``, ``threshold``, ``why``, ``judge_reasoning``.

    Raises
    ------
    InputError
        If the results hold no reasoning.
    """
    check_table(results)
    if "judge_reasoning" not in results:
        raise InputError("results lack the column 'judge_reasoning'; recorded results are stored without texts.")
    rows = results[(results["status"] == "ok") & results["score"].notna() & results["judge_reasoning"].notna()]
    said = rows["judge_reasoning"].astype(str)
    high = (rows["score"] >= rows["threshold"]).fillna(False)
    last = said.map(lambda text: (_NAMED.findall(text) or [None])[-1]).astype("float64")
    rules = {
        "short": high & (said.str.split().str.len() < SHORT_WORDS),
        "says unused": high & said.str.contains(_UNUSED),
        "names another score": last.notna() & (last != rows["score"]),
    }
    met = sum(rule.astype(int) for rule in rules.values())
    why = [", ".join(name for name, rule in rules.items() if rule[row]) for row in rows.index]
    varying = [name for name in KEY if name != "entry_id" and name in rows and rows[name].nunique() > 1]
    shown = ["entry_id", *varying, "score", "threshold", "why", "judge_reasoning"]
    table = rows.assign(why=why, _met=met)[met > 0]
    table = table.sort_values([name for name in KEY if name in table])  # the same order wherever rows came from
    table = table.sort_values(["_met", "score"], ascending=False, kind="stable")
    return table[shown].head(len(table) if n is None else n).reset_index(drop=True)
