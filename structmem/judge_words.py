"""What tables about judges do and do not support, in sentences made from their numbers."""

from __future__ import annotations

from math import isnan

import pandas as pd


def judge_reading(agreement: pd.DataFrame, accuracy: pd.DataFrame, corrected: pd.DataFrame) -> None:
    """Print what agreement, accuracy and corrected rates say of a judge: found or not found, equally plainly.

    Parameters
    ----------
    agreement : DataFrame
        As made by ``judge_agreement``, without groups.
    accuracy : DataFrame
        As made by ``judge_accuracy(audited, by="structure")``.
    corrected : DataFrame
        As made by ``corrected_rate``.
    """
    judges = {str(name) for column in ("first", "second") for name in agreement.get(column, ())}
    models = {str(name) for name in corrected.get("model", ())}
    if any("simulated" in name for name in judges | models):
        print("Simulated: these numbers show that the tables find what was planted, and nothing about a real judge.")
    for row in agreement.to_dict("records"):
        if row["of"] == "fail or pass":
            print(f"{row['failure_type']}, {row['measure']} on fail or pass: {_value(row)}")
    print("Agreement is no accuracy: two judges can share a mistake. Accuracy is against a person's scores only:")
    for row in accuracy.to_dict("records"):
        shares = [_share(row, name) for name in ("sensitivity", "specificity")]
        print(f"  {row['failure_type']}, {row['arm']}: {', '.join(shares)} ({row['n_answers']} answers)")
        if row["remark"]:
            print(f"    {row['remark']}")
    print("Differences of single answers' failure rates, corrected for these errors:")
    for row in corrected.to_dict("records"):
        if isnan(row["difference_pp"]):
            if row["reason"]:
                print(f"  {row['failure_type']}, {row['arm']}: {row['reason']}")
            continue
        apart = row["low_pp"] > 0 or row["high_pp"] < 0
        verdict = f"differs from {row['baseline']}" if apart else f"is not distinguishable from {row['baseline']}"
        numbers = f"{row['difference_pp']:+.1f} pp [{row['low_pp']:+.1f}, {row['high_pp']:+.1f}]".replace("-", "−")
        print(f"  {row['failure_type']}, {row['arm']}: {numbers}, {verdict}")


def _value(row: dict) -> str:
    counted = f"{row['n_answers']} answers of {row['n_entries']} entries"
    if isnan(row["coefficient"]):
        return f"{row['reason']} ({counted})"
    bounds = f" [{row['low']:.2f}, {row['high']:.2f}]" if not isnan(row["low"]) else f", interval {row['interval']}"
    return f"{row['coefficient']:.2f}{bounds} ({counted})".replace("-", "−")


def _share(row: dict, name: str) -> str:
    if isnan(row[name]):
        return f"{name} not available"
    bounds = [row[f"{name}_low"], row[f"{name}_high"]]
    limits = "" if isnan(bounds[0]) else " [{:.0f}, {:.0f}]".format(*(100 * bound for bound in bounds))
    return f"{name} {100 * row[name]:.0f} %{limits}"
