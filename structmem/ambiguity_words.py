"""What tables of ambiguity do and do not support, in sentences made from their numbers."""

from __future__ import annotations

from math import isnan

import pandas as pd

from .sorting_accuracy import ALIKE, MAJORITY
from .tables import bound, signed

_FEW = 10  # memories of a domain under which its share is not read out


def ambiguity_reading(
    memories: pd.DataFrame,
    accuracy: pd.DataFrame,
    errors: pd.DataFrame,
    effect: pd.DataFrame | None = None,
    passes: pd.DataFrame | None = None,
    results: pd.DataFrame | None = None,
) -> None:
    """Print what is and is not found: who labelled, who sorted, how well, where it errs, and whether entries differ.

    Parameters
    ----------
    memories : DataFrame
        As made by `memory_ambiguity`.
    accuracy, errors : DataFrame
        As made by `structurer_accuracy` (without weights) and `domain_errors` by reference.
    effect : DataFrame, optional
        As made by `ambiguity_effect`, of any measures, one after the other.
    passes : DataFrame, optional
        As made by `labelling_agreement`; leave it out where the labels are your own.
    results : DataFrame, optional
        Those behind `effect`, for who scored them.
    """
    if passes is not None:
        _read_passes(passes)
    _read_memories(memories)
    _read_accuracy(accuracy)
    _read_errors(errors)
    if effect is not None:
        _read_effect(effect, results)


def _read_passes(passes: pd.DataFrame) -> None:
    rows = passes[(passes["weighting"] == ALIKE) & (passes["of"] == "primary domain")].set_index("measure")
    raw, alpha = rows.loc["raw agreement"], rows.loc["Krippendorff's alpha, nominal"]
    print(
        f"Labels: two passes agree on the primary domain of {100 * raw['coefficient']:.0f} % of {raw['n_memories']} "
        f"memories ({raw['n_entries']} entries), alpha {_number(alpha, 'coefficient', 'low', 'high')}. Both were made "
        "by language models of one family and checked by nobody: this agreement overstates how reliable the labels are."
    )


def _read_memories(memories: pd.DataFrame) -> None:
    rated = memories[memories["agreement"].notna()]
    unclassified = int(memories["n_unclassified"].sum())
    if not len(rated):
        print("No memory was sorted by two raters: nothing is known of ambiguity.")
        return
    ties = int(rated["tie"].sum())
    apart = (rated["entropy_bits"] > 0).groupby(rated["n_raters"])
    counts = [f"{some} of the {n} sorted by {k} raters" for k, some, n in zip(
        apart.groups, apart.sum(), apart.size(), strict=True
    )]  # fmt: skip
    print(
        f"Raters: not all put into one domain are {', '.join(counts)}; {ties} are tied; {unclassified} ratings are "
        "'unclassified', counted apart. Raters that share a rule or a model agree more than independent ones would."
    )


def _read_accuracy(accuracy: pd.DataFrame) -> None:
    print("Sorting against the labels (share of memories inside the acceptable set):")
    for row in accuracy.to_dict("records"):
        line = f"  {row['rater']}: {_percent(row, 'accuracy')}"
        if not row["rater"].startswith(MAJORITY):
            line += f", on the primary domain {_percent(row, 'primary_accuracy')}"
            line += f", kappa {_number(row, 'kappa', 'kappa_low', 'kappa_high')}, {row['n_memories']} memories"
            low, high = row["above_majority_low_pp"], row["above_majority_high_pp"]
            if not isnan(low):
                rate = 100 * row["accuracy"] - row["above_majority_pp"]
                side = "above" if low > 0 else "below" if high < 0 else "not distinguishable from"
                gap = f"{signed(row['above_majority_pp'])} pp [{bound(low)}, {bound(high)}]"
                line += f"; {side} the majority domain's {rate:.0f} % on these, {gap}"
        if row["n_new_domain"]:
            line += f"; {row['n_new_domain']} memories are in new domains, which count as misclassified"
        print(f"{line}.")
    chance = accuracy[~accuracy["rater"].str.startswith(MAJORITY) & (accuracy["kappa_low"] <= 0)]
    if len(chance):
        print(
            f"Not shown to sort better than chance (kappa): {'; '.join(chance['rater'])}. Where they sorted, entropy "
            "is mostly their noise, and memories that it ranks as ambiguous need not be."
        )


def _read_errors(errors: pd.DataFrame) -> None:
    for rater, rows in errors.groupby("rater", sort=False):
        known = rows[rows["n_memories"] >= _FEW]
        if not len(known):
            print(f"{rater}: no domain has {_FEW} labelled memories; no share is read out.")
            continue
        worst = known.loc[known["misclassified_share"].idxmax()].to_dict()
        share = _percent(worst, "misclassified_share", "misclassified")
        went = f", which went (three most frequent) to {worst['confused_with']}" if worst["confused_with"] else ""
        few = len(rows) - len(known)
        # The highest of several rough shares is high by chance too.
        alike = int((known["misclassified_high"] >= worst["misclassified_low"]).sum()) - 1
        rough = f"; the intervals of {alike} of {len(known) - 1} others reach into its own" if len(known) > 1 else ""
        print(
            f"{rater}: the highest share misclassified is that of {worst['domain']}, {share} of "
            f"{worst['n_memories']}{went}{rough}; {few} of {len(rows)} domains have fewer than {_FEW} labelled "
            "memories."
        )


def _read_effect(effect: pd.DataFrame, results: pd.DataFrame | None) -> None:
    if results is not None and len(results) and results["judge"].eq("echo").all():
        print("Answers were scored by the offline echo measure: what follows shows the pipeline, not leakage.")
    if not len(effect):
        print("No arm has a baseline: whether structures help less where memories are ambiguous cannot be asked.")
        return
    measures = [term for term in dict.fromkeys(effect["term"]) if term in _MEASURED]
    for measure in measures:
        rows = effect[effect["term"] == measure]
        print(f"Reduction by {_MEASURED[measure]}, adjusted; below 0: less reduction where memories are ambiguous:")
        for arm, group in rows.groupby("arm", sort=False):
            said: dict[str, list[str]] = {}
            for row in group.to_dict("records"):
                said.setdefault(_verdict(row), []).append(str(row["of"]))
            for verdict, of in said.items():
                print(f"  {arm}, {', '.join(of)}: {verdict}")
        lost = rows[rows["n_left_out"] > 0]
        if len(lost):
            print(f"  Left out: {lost.iloc[0]['reasons']} (entries of {lost.iloc[0]['arm']}).")
    print("Associations among few entries, none of them planned; A/A rows show what noise alone gives.")


_MEASURED = {
    "entropy_bits": "entropy of the raters",
    "disagreement": "disagreement of the raters",
    "several_acceptable": "share of gold-domain memories with several acceptable domains",
}


def _verdict(row: dict) -> str:
    if isnan(row["effect"]):
        return f"not available, {row['reason']}"
    # Rates to one decimal, scores to two.
    digits = 1 if row["per"].startswith("pp") else 2
    shown = f"{{:+.{digits}f}}"
    numbers = [  # + 0.0: no −0.00
        shown.format(round(row[name], digits) + 0.0).replace("-", "−")
        for name in ("effect", "effect_low", "effect_high")
    ]
    apart = row["effect_low"] > 0 or row["effect_high"] < 0
    verdict = "distinguishable from 0" if apart else "not distinguishable from 0"
    power = shown.format(row["detectable"]).lstrip("+")
    return (
        f"{numbers[0]} [{numbers[1]}, {numbers[2]}] {row['per']}, {verdict}; n = {row['n_entries']} entries, and "
        f"80 % power needs a true slope of about ±{power}"
    )


def _percent(row: dict, column: str, stem: str | None = None) -> str:
    stem = stem or column
    low, high = row[f"{stem}_low"], row[f"{stem}_high"]
    limits = "" if isnan(low) else f" [{100 * low:.0f}, {100 * high:.0f}]"
    return f"{100 * row[column]:.0f} %{limits}"


def _number(row, column: str, low: str, high: str) -> str:
    if isnan(row[column]):
        return "not defined"
    limits = "" if isnan(row[low]) else f" [{row[low]:.2f}, {row[high]:.2f}]"
    return f"{row[column]:.2f}{limits}".replace("-", "−")
