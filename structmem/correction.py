"""What a person's scores say of a judge: sensitivity and specificity, and failure rates corrected for its errors."""

from __future__ import annotations

from collections.abc import Iterable
from math import isnan, nan

import numpy as np
import pandas as pd

from .errors import InputError, choice
from .intervals import wilson
from .outcomes import ARM, NONE, display_structure, keep_none, sort_arms, unit_rows
from .stamping import stamped
from .stats import failure_rate
from .verification import Share, difference, rate_of_arm, rate_of_person, share_of_sum, weighted_share

OF_ACCURACY = "MOVER of weighted Wilson limits"
FEW = 10  # human failures (or passes) of an arm, below which its sensitivity (or specificity) is not compared
_NEEDED = ("entry_id", "failure_type", "judge_failed", "human_failed", "stratum", "weight")


def judge_accuracy(
    audited: pd.DataFrame, by: str | Iterable[str] | None = None, *, baseline: str = "flat"
) -> pd.DataFrame:
    """How often the judge fails what a person fails (sensitivity), and passes what a person passes (specificity).

    Only answers that a person scored enter; each weighs as many rows of the results as it stands for, so that the
    sampling by judge's score does not bias the shares. The unit is one answer, and the person is taken to be right.

    Parameters
    ----------
    audited : DataFrame
        As made by ``audit_import``; one row per sampled answer.
    by : column name or names, optional
        Groups, such as ``"structure"``; ``failure_type`` always separates.
    baseline : str
        With ``structure`` in ``by``: the structure that the others are compared with.

    Returns
    -------
    DataFrame
        One row per group: ``sensitivity``, ``specificity`` in [0, 1] with ``…_low``, ``…_high`` (95 %, ``interval``);
        ``n_answers`` a person scored, ``n_human_failed``, ``n_human_passed`` of them, ``n_entries``, ``n_empty`` (not
        scored, not used; within a stratum they are taken to be missing at random); ``reason`` where one is missing;
        ``remark``: whether the arm's errors differ from the baseline's, where the person failed (sensitivity) or passed
        (specificity) at least 10 answers of each.

    Raises
    ------
    InputError
        No audited rows, echo-judged rows (they hold no verdict to be right or wrong), unknown columns.

    Notes
    -----
    Weighting by the inverse of the sampling share undoes verification bias (Begg & Greenes 1983, Biometrics 39:207).
    Limits are made from those of the shares that the person fails among the judge's failures and among its passes
    (weighted, entries as clusters, Wilson), and of its own rate, by MOVER for ratios (Donner & Zou 2012): no miss among
    few answers that stand for many is no proof of none. Differences of two arms by MOVER (Zou & Donner 2008) take
    them as independent, which is cautious where they share entries.
    """
    by = [] if by is None else [by] if isinstance(by, str) else list(by)
    audited = _checked(audited, by)
    keys = list(dict.fromkeys([*by, "failure_type"]))
    rows = []
    for key, group in audited.groupby(keys, sort=False):
        named = dict(zip(keys, key, strict=True))
        if "structure" in keys:
            structurers = set(group["structurer"]) if "structurer" in group else set()
            named["arm"] = display_structure(named["structure"], *structurers if len(structurers) == 1 else ())
        rows.append(named | _accuracy_row(group))
    table = sort_arms(pd.DataFrame(rows), ["failure_type", *keys])
    if "structure" in by:
        table = _compared(table, [k for k in keys if k != "structure"], baseline)
    table = table.drop(columns=[column for column in table if column.startswith("_")])
    return stamped(table, audited.assign(status="ok"))


def corrected_rate(
    results: pd.DataFrame,
    audited: pd.DataFrame,
    by: str | Iterable[str] = ("model", "structure"),
    *,
    pool: bool = False,
    baseline: str = "flat",
) -> pd.DataFrame:
    """Failure rates of single answers, corrected for what the judge gets wrong by a person's scores.

    Rogan–Gladen: (rate + specificity − 1) / (sensitivity + specificity − 1). It corrects FR@1, the rate of single
    answers: errors in the maximum over K answers are others, and FR@K stays as it is.

    Parameters
    ----------
    results : DataFrame
        One row per generation; or a table of ``failure_rate``, whose entries then count as one observation each.
    audited : DataFrame
        As made by ``audit_import``, by the same judge.
    by : column names
        As in ``failure_rate``; unused with a table of rates.
    pool : bool
        False: each arm by its own audited answers, which allows the judge's errors to differ between arms. (Its rate is
        then the weighted rate of the person's own verdicts.) True: by those of all arms of the failure type, which is
        more precise, and wrong where errors differ (see ``judge_accuracy``).
    baseline : str
        The structure that ``difference_pp`` is to.

    Returns
    -------
    DataFrame
        One row per group: ``fr_at_1`` as judged, ``corrected_rate`` in [0, 1] with ``corrected_low``,
        ``corrected_high`` (95 %, ``interval``); ``difference_pp`` = arm − baseline of corrected rates with ``low_pp``,
        ``high_pp``; ``sensitivity``, ``specificity``, ``n_human_failed``, ``n_human_passed`` behind them, ``accuracy``
        ('own' or 'pooled'); ``n_entries``; ``reason`` where it is missing; ``remark`` (an estimate outside [0, 1] is
        cut, and said).

    Raises
    ------
    InputError
        As ``failure_rate`` and ``judge_accuracy``; audited rows of another judge.

    Notes
    -----
    Rogan & Gladen (1978, American Journal of Epidemiology 107:71). Limits by MOVER (Zou 2007, Psychological Methods
    12:399) from those of the judge's rate and of the shares that the person fails among its failures and its passes,
    with their correlation over entries; pooled (``verification.rate_of_arm``) also from those of the judge's rate in
    all audited arms. A table of rates does not tell how these two rates hang together, which mostly makes pooled limits
    wider. Simulated coverage with 200 entries × 3 answers, 20 or 60 failures and passes of each arm audited, true rates
    from 3 to 90 %: own 95.5 % on average, at least 94.0 %; pooled 95.0 %, at least 93.2 %. Differences: MOVER (Zou &
    Donner 2008, Statistics in Medicine 27:1693), as if the arms were independent, which is cautious where they share
    entries.
    """
    audited = _checked(audited, [])
    table, shares, wholes = _apparent(results, by, audited)
    named = [column for column in ("model", *ARM, "failure_type") if column in table and column in audited]
    rows = []
    for row, share in zip(table.to_dict("records"), shares, strict=True):
        mine = audited["failure_type"].eq(row["failure_type"])
        for column in () if pool else named:
            mine &= audited[column].eq(row[column])
        found = _accuracy_row(audited[mine])
        whole = wholes.get(row["failure_type"], found["_rate"]) if pool else None
        rows.append(row | _corrected_row(share, found, whole))
    table = pd.DataFrame(rows)
    if len(table) and "structure" in table:
        table = _differences(table, baseline)
    return stamped(table, results if "status" in results else audited.assign(status="ok"))


# -- a person's verdicts ----------------------------------------------------------------------------------------------


def _checked(audited: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    missing = [name for name in _NEEDED if not isinstance(audited, pd.DataFrame) or name not in audited]
    if missing:
        raise InputError(f"audited lacks the columns {missing}; expected the table made by audit_import.")
    for column in by:
        if column not in audited:
            raise choice("by", column, audited.columns)
    if not len(audited):
        raise InputError("audited has no rows; expected the table made by audit_import.")
    if audited["judge_failed"].isna().any():
        raise InputError(
            f"{int(audited['judge_failed'].isna().sum())} audited rows hold no verdict of the judge (the echo measure "
            "gives none), so there is nothing to be right or wrong."
        )
    return keep_none(audited, [*by, *[name for name in (*ARM, "failure_type") if name in audited]])


def _accuracy_row(group: pd.DataFrame) -> dict:
    """Columns of a group's accuracy; those with an underscore are shares for further use."""
    scored = group[group["human_failed"].notna()]
    # Answers that the person left out are made up for by the others of their stratum.
    answered = scored.groupby("stratum")["weight"].transform("sum")
    whole = group.groupby("stratum")["weight"].sum()
    weights = (scored["weight"] * scored["stratum"].map(whole).astype(float) / answered).to_numpy(dtype=float)
    human, judged = (scored[name].to_numpy(dtype=bool) for name in ("human_failed", "judge_failed"))
    entries = scored["entry_id"].to_numpy()
    sides = [weighted_share(human[m].astype(float), weights[m], entries[m]) for m in (judged, ~judged)]
    total = float(weights.sum())
    rate = float(weights[judged].sum()) / total if len(scored) else nan
    rate = Share(rate, *wilson(rate * total, total), total)  # the judge's, over all rows that the sample stands for
    sensitivity = share_of_sum(rate, *sides)
    specificity = share_of_sum(rate.inverse(), sides[1].inverse(), sides[0].inverse())
    found, reasons = {}, []
    for name, share, verb in (("sensitivity", sensitivity, "failed"), ("specificity", specificity, "passed")):
        found |= {name: share.value, f"{name}_low": share.low, f"{name}_high": share.high, f"_{name}": share}
        if isnan(share.value):
            reasons.append(f"{name} not available: the person {verb} none of {len(scored)} answers")
    lost, strata = set(group["stratum"]) - set(scored["stratum"]), group["stratum"].nunique()
    interval = OF_ACCURACY
    if len(scored) and (judged.all() or not judged.any()):
        interval = f"not available: the judge {'failed' if judged.all() else 'passed'} every audited answer"
    return found | {
        "interval": interval, "n_answers": len(scored), "n_human_failed": int(human.sum()),
        "n_human_passed": int((~human).sum()), "n_entries": scored["entry_id"].nunique(),
        "n_empty": len(group) - len(scored), "reason": "; ".join(reasons),
        "remark": f"no score in {len(lost)} of {strata} strata, which are not represented" if lost else "",
        "_rate": rate, "_sides": sides,
    }  # fmt: skip


def _compared(table: pd.DataFrame, context: list[str], baseline: str) -> pd.DataFrame:
    """Say of every arm whether the judge's errors differ from those on the baseline."""
    if baseline not in set(table["structure"]):
        raise choice("baseline", baseline, set(table["structure"]))
    told = [column for column in context if column not in ("structurer", "structurer_options", "taxonomy")]
    words = []
    for row in table.to_dict("records"):
        mine = (table["structure"] == baseline).to_numpy(copy=True)
        for column in told:
            mine &= table[column].eq(row[column]).to_numpy()
        if row["structure"] == baseline or not mine.any():
            words.append(row["remark"])
            continue
        other, said = table[mine].iloc[0], [row["remark"]]
        for name, counted, sort in (
            ("sensitivity", "n_human_failed", "failures"), ("specificity", "n_human_passed", "passes"),
        ):  # fmt: skip
            if (fewest := min(row[counted], other[counted])) < FEW:
                said.append(f"{name}: too few human {sort} ({fewest}) to compare with {baseline}")
                continue
            low, high = difference(row[f"_{name}"], other[f"_{name}"])
            if isnan(low):
                said.append(f"{name}: cannot be compared with {baseline}")
                continue
            apart = 100 * (row[name] - other[name])
            verdict = f"differs from {baseline}" if low > 0 or high < 0 else f"no difference from {baseline} is shown"
            numbers = f"{apart:+.1f} pp [{100 * low:+.1f}, {100 * high:+.1f}]".replace("-", "−")
            said.append(f"{name}: {verdict}, {numbers}")
        words.append("; ".join(filter(None, said)))
    return table.assign(remark=words)


# -- rates ------------------------------------------------------------------------------------------------------------


def _apparent(results: pd.DataFrame, by, audited: pd.DataFrame) -> tuple[pd.DataFrame, list[Share], dict[str, Share]]:
    """The rates of single answers as judged, as columns and as shares; and per failure type that of all audited arms.

    The last is unknown with a table of rates.
    """
    if "fr_at_1" in results:
        table = results[[c for c in results if c in (*ARM, "failure_type", "arm", "fr_at_1", "n_entries")]]
        sizes = table["n_entries"].astype(float)
        shares = [Share(p, *wilson(p * n, n), n) for p, n in zip(table["fr_at_1"], sizes, strict=True)]
        return table.reset_index(drop=True), shares, {}
    judges = set(map(tuple, audited.reindex(columns=["judge", "judge_model"]).fillna("").replace(NONE, "").to_numpy()))
    held = results.reindex(columns=["judge", "judge_model"]).astype(object).fillna("")
    if len(results) and not judges & set(map(tuple, held.to_numpy())):
        raise InputError(f"audited rows are about the judges {sorted(judges)}, which judged none of the results.")
    rates = failure_rate(results, by)
    units, _ = unit_rows(results, [by] if isinstance(by, str) else list(by))
    keys = [column for column in rates.columns[: rates.columns.get_loc("failure_rate")] if column != "arm"]
    units = units[units["complete"]]

    def share(held: pd.DataFrame) -> Share:
        draws = float(held["expected"].max()) if len(held) else 1.0
        values = held["failed_one"].to_numpy(dtype=float)
        return weighted_share(values, np.ones(len(held)), held["entry_id"].to_numpy(), draws)

    shares = []
    for row in rates.to_dict("records"):
        mine = np.full(len(units), True)
        for column in keys:
            mine = mine & units[column].eq(row[column]).to_numpy()
        shares.append(share(units[mine]))
    named = [column for column in ("model", *ARM, "failure_type") if column in units and column in audited]
    seen = pd.MultiIndex.from_frame(units[named]).isin(pd.MultiIndex.from_frame(audited[named]))
    wholes = {kind: share(held) for kind, held in units[seen].groupby("failure_type")}
    shown = [*keys, *(["arm"] if "arm" in rates else []), "fr_at_1", "n_entries"]
    return rates[shown], shares, wholes


def _corrected_row(rate: Share, found: dict, whole: Share | None) -> dict:
    """One corrected rate; ``whole``: the judge's rate in all audited arms, where they are pooled."""
    out = {"corrected_rate": nan, "corrected_low": nan, "corrected_high": nan, "interval": "", "reason": ""}
    out |= {name: found[name] for name in ("sensitivity", "specificity", "n_human_failed", "n_human_passed", "remark")}
    out |= {"accuracy": "own" if whole is None else "pooled"}
    sensitivity, specificity = found["_sensitivity"], found["_specificity"]
    if isnan(rate.value):
        return out | {"reason": "not available: no rate"}
    if found["reason"]:
        return out | {"reason": found["reason"]}
    if found["interval"] != OF_ACCURACY:
        return out | {"reason": found["interval"]}
    if (both := sensitivity.value + specificity.value) <= 1 + 1e-12:
        return out | {"reason": f"not available: sensitivity + specificity = {both:.2f}, no better than chance"}
    value = (rate.value + specificity.value - 1) / (both - 1)
    if whole is None:
        _, low, high, *_ = rate_of_person(rate, *found["_sides"])
    else:
        # The audited answers say what the whole is; the results how sure that is, and how much of it is this arm's.
        share, n = found["_rate"].value, whole.effective
        whole = Share(share, *wilson(share * n, n), n, whole.parts)
        _, low, high, *_ = rate_of_arm(rate, whole, *found["_sides"])
    if not 0 <= round(value, 12) <= 1:
        words = f"estimate {100 * value:.1f} % cut to {'0' if value < 0 else '100'} %".replace("-", "−")
        out["remark"] = "; ".join(filter(None, [words, out["remark"]]))
    value = min(max(value, 0.0), 1.0)
    bounds = {"corrected_low": min(low, value), "corrected_high": max(high, value)}
    return out | {"corrected_rate": value} | bounds | {"interval": OF_ACCURACY}


def _differences(table: pd.DataFrame, baseline: str) -> pd.DataFrame:
    told = ("structure", "structurer", "structurer_options", "taxonomy", "partition_draw", "replicate")
    shared = [column for column in (*ARM, "failure_type") if column in table and column not in told]
    found = []
    for row in table.to_dict("records"):
        mine = (table["structure"] == baseline).to_numpy(copy=True)
        for column in shared:
            mine &= table[column].eq(row[column]).to_numpy()
        blank = {"baseline": baseline, "difference_pp": nan, "low_pp": nan, "high_pp": nan}
        itself = not mine.any() or table[mine].iloc[0].to_dict().items() == row.items()
        if row["structure"] != baseline and not itself:
            ends, other = ["corrected_rate", "corrected_low", "corrected_high"], table[mine].iloc[0]
            low, high = difference(*(Share(*(one[end] for end in ends), nan) for one in (row, other)))
            blank |= {"difference_pp": 100 * (row["corrected_rate"] - other["corrected_rate"])}
            blank |= {"low_pp": 100 * low, "high_pp": 100 * high}
        found.append(row | blank)
    return pd.DataFrame(found)
