"""Agreement of two judges, or of one judge with itself, on the same answers: raw, kappa, alpha, and arm by arm."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from math import nan

import numpy as np
import pandas as pd

from .errors import InputError, choice
from .intervals import wilson_clustered
from .outcomes import ARM, NONE, check_results, display_structure, keep_none, sort_arms, unit_rows
from .reliability import (
    ONE_CLASS,
    alphas_of_pairs,
    distance_of,
    half_width,
    kappas,
    tables_by_cluster,
    within_one,
)
from .stamping import stamped

MEAN = "mean over groups"
_JUDGE = ("judge", "judge_model", "threshold")


def judge_agreement(
    first: pd.DataFrame,
    second: pd.DataFrame,
    by: str | Iterable[str] | None = None,
) -> pd.DataFrame:
    """How far two judges, or two runs of one judge, agree on the same answers.

    Rows are matched on the row key without the judge's columns. Only answers that both scored count; the others are
    counted. One answer is one observation (no maximum over generations), and the entries are the clusters.

    Parameters
    ----------
    first, second : DataFrame
        Results of the same answers, one row per generation; see ``rejudge``.
    by : column name or names, optional
        Groups, such as ``"structure"`` or ``"memory_domain"``; ``failure_type`` always separates. A last row per
        measure, 'mean over groups', gives each group the same weight and says which groups it leaves out.

    Returns
    -------
    DataFrame
        One row per group and measure. ``first``, ``second``: the judges; ``of``: 'score' or 'fail or pass' (each judge
        by its own threshold); ``measure``; ``coefficient`` (raw agreement in [0, 1]; kappa and alpha at most 1, 0 is
        chance); ``low``, ``high``, 95 %, with the ``interval``'s name; ``n_answers`` scored by both, ``n_entries``,
        ``n_unscored`` (in both tables, not scored in both), ``n_unmatched`` (in one table only); ``reason`` where the
        coefficient is missing ('undefined: one class' where both judges give every answer the same class), ``remark``.

    Raises
    ------
    InputError
        Doubled keys, echo-judged rows, unknown or judge columns in ``by``, rows that share a key and hold different
        answers.

    Notes
    -----
    Cohen (1960, 1968) for kappa, by statsmodels; Krippendorff (2011), 'Computing Krippendorff's alpha-reliability'.
    Intervals, with their coverage in simulations of 20 to 100 entries × 3 answers, scores spread evenly or mostly 1:
    raw agreement Wilson's, entries as clusters (95.0 % on average, at least 93.8 %); kappa and alpha a jackknife over
    entries with t on the atanh scale, see ``reliability.half_width`` (quadratic kappa 94.5 %, at least 89.0 % with 20
    entries mostly at 1; ordinal alpha 95.5 %, at least 93.6 %). Agreement is no accuracy: two judges can share a
    mistake (see ``judge_accuracy``).
    """
    by = [] if by is None else [by] if isinstance(by, str) else list(by)
    pairs, labels = _matched(first, second, by)
    scales = [_scales(table) for table in (first, second)]
    keys = list(dict.fromkeys([*by, "failure_type"]))
    rows = []
    for key, group in pairs.groupby(keys, sort=False):
        both = group[group["failed_1"].notna() & group["failed_2"].notna()]
        kind = key[keys.index("failure_type")]
        mine, theirs = (scale.get(kind, set()) for scale in scales)
        apart = f"not available: other scales ({_said(mine)}; {_said(theirs)})" if mine and theirs != mine else ""
        shared = dict(zip(keys, key, strict=True)) | labels
        counts = {"n_answers": len(both), "n_entries": both["entry_id"].nunique()}
        matched = group["_merge"].eq("both")
        counts |= {"n_unscored": int(matched.sum()) - len(both), "n_unmatched": int((~matched).sum())}
        for of, columns in (("score", ("value_1", "value_2")), ("fail or pass", ("failed_1", "failed_2"))):
            found = _measures(both, columns, of, apart if of == "score" else "")
            rows += [shared | {"of": of} | one | counts for one in found]
    columns = [*keys, "first", "second", "of", "measure", "coefficient", "low", "high", "interval"]
    columns += ["n_answers", "n_entries", "n_unscored", "n_unmatched", "reason", "remark"]
    table = pd.DataFrame(rows, columns=columns).assign(position=range(len(rows)))
    table = sort_arms(table, ["failure_type", *by, "position"]).drop(columns="position")
    if by:
        table = pd.concat([table, *_means(table, by)], ignore_index=True)[columns]
    return stamped(table, first)


def _matched(first: pd.DataFrame, second: pd.DataFrame, by: list[str]) -> tuple[pd.DataFrame, dict]:
    """Both judges' value and failure of each answer side by side, and how the judges are called."""
    if wrong := [column for column in by if column in (*_JUDGE, "entry_id")]:
        raise InputError(f"by names {wrong}, which tells judges or entries apart; group by a setting of the answers.")
    sides, labels = [], {}
    for name, table, extra in (("first", first, by), ("second", second, [])):
        check_results(table, extra)
        if "judge" in table and table["judge"].eq("echo").any():
            raise InputError(
                f"{name}: rows judged by 'echo' measure overlap and hold no score; judge the same answers with rejudge "
                "first, and leave out results[results.judge == 'echo']."
            )
        units, arm = unit_rows(table, ["generation", *extra])
        own = [column for column in arm if column not in _JUDGE]
        key = ["entry_id", "failure_type", *own, "generation"]
        if (n := int(units.duplicated(key, keep=False).sum())) > 0:
            judges = sorted(set(units["judge"])) if "judge" in units else []
            raise InputError(
                f"{name}: {n} rows share their key without the judge, so they hold several judges {judges}; pass one "
                "judge's rows of each."
            )
        units = units.rename(columns={"mean_value": "value"})
        sides.append((units[list(dict.fromkeys([*key, *extra, "value", "failed"]))], key))
        labels[name] = _judges(table)
    (one, key), (two, other) = sides
    key = [column for column in key if column in other]
    for side, held in (("first", one), ("second", two)):
        if held.duplicated(key).any():
            raise InputError(f"{side}: rows share their key {key}, the columns that both tables have.")
    _same_answers(first, second, key)
    wanted = [*key, "value", "failed"]
    pairs = one.merge(two[wanted], on=key, how="outer", suffixes=("_1", "_2"), indicator=True, validate="1:1")
    pairs[by] = pairs[by].astype(object).where(pairs[by].notna(), NONE)  # rows of the second table alone
    return pairs, labels


def _judges(table: pd.DataFrame) -> str:
    names = table.reindex(columns=["judge", "judge_model"]).astype(object).fillna("").drop_duplicates()
    words = [f"{judge} ({model})" if model else str(judge) for judge, model in names.itertuples(index=False)]
    return ", ".join(sorted(filter(None, words))) or NONE


def _same_answers(first: pd.DataFrame, second: pd.DataFrame, key: list[str]) -> None:
    """Refuse rows of one key whose answers are known to differ: that would be no agreement about anything."""
    known = [column for column in ("answer_key", "response") if column in first and column in second]
    sides = [keep_none(table[[*key, *known]], key) for table in (first, second)]
    both = sides[0].merge(sides[1], on=key, suffixes=("_1", "_2"))
    for column in known:
        one, two = both[f"{column}_1"], both[f"{column}_2"]
        if n := int((one.notna() & two.notna() & one.ne(two)).sum()):
            raise InputError(
                f"{n} of {len(both)} matched rows hold different answers ({column}); agreement is about the same "
                "answers: judge the stored ones with rejudge."
            )


def _scales(table: pd.DataFrame) -> dict[str, set]:
    if not {"scale_low", "scale_high"} <= set(table):
        return {}
    known = table[table["scale_low"].notna() & table["scale_high"].notna()]
    return {
        kind: set(zip(rows["scale_low"].astype(int), rows["scale_high"].astype(int), strict=True))
        for kind, rows in known.groupby("failure_type")
    }


def _said(scales: set) -> str:
    return ", ".join(f"{low} to {high}" for low, high in sorted(scales)) or "unknown"


# What is measured of scores and of fail or pass: the name, and kappa's weights.
_MEASURES = {
    "score": {
        "Cohen's kappa, linear weights": "linear",
        "Cohen's kappa, quadratic weights": "quadratic",
        "Krippendorff's alpha, ordinal": None,
    },
    "fail or pass": {"Cohen's kappa": None, "Krippendorff's alpha, nominal": None},
}


def _measures(both: pd.DataFrame, columns: tuple[str, str], of: str, unavailable: str) -> list[dict]:
    """The measures of one kind for one group of answers."""
    from statsmodels.stats.inter_rater import cohens_kappa  # takes half a second

    if not len(both):
        unavailable = unavailable or "not available: no answer is scored by both"
    blank = {"coefficient": nan, "low": nan, "high": nan, "interval": "", "reason": unavailable, "remark": ""}
    if unavailable:
        return [{"measure": name} | blank for name in ("raw agreement", *_MEASURES[of])]
    values = both[list(columns)].to_numpy(dtype=float)
    # Whole numbers of the scale: classes that nobody used change nothing, and distances stay those of the scale.
    classes = np.arange(values.min(), values.max() + 1)
    entries = both["entry_id"].to_numpy()
    tables = tables_by_cluster(values, classes, entries)
    whole = tables.sum(axis=0)
    agree = (values[:, 0] == values[:, 1]).astype(float)
    low, high = wilson_clustered(agree, entries)
    raw = {"coefficient": float(agree.mean()), "low": low, "high": high, "interval": "Wilson, entries as clusters"}
    found = [{"measure": "raw agreement"} | blank | raw]
    single = 1 in (np.count_nonzero(whole.sum(axis=0)), np.count_nonzero(whole.sum(axis=1)))
    for name, weights in _MEASURES[of].items():
        row = {"measure": name} | blank
        if len(classes) == 1:
            row["reason"] = ONE_CLASS
        elif "kappa" in name:
            row["coefficient"] = float(cohens_kappa(whole, wt=weights, return_results=False))
            row |= within_one(tables, partial(kappas, distance=distance_of(classes, weights)))
            row["remark"] = "one judge gives a single class: kappa is 0 whatever the agreement" if single else ""
        else:
            statistic = partial(alphas_of_pairs, classes=classes, level=name.rsplit(" ", 1)[1])
            row |= {"coefficient": float(statistic(whole[None])[0])} | within_one(tables, statistic)
        found.append(row)
    return found


def _means(table: pd.DataFrame, by: list[str]) -> list[pd.DataFrame]:
    """Per failure type and measure the mean over groups, each weighing the same; undefined groups are counted."""
    found = []
    for (kind, first, second, of, measure), rows in table.groupby(
        ["failure_type", "first", "second", "of", "measure"], sort=False
    ):
        defined = rows[rows["coefficient"].notna()]
        left_out = [f"{n} {why}" for why, n in rows.loc[rows["coefficient"].isna(), "reason"].value_counts().items()]
        remark = f"{len(defined)} of {len(rows)} groups"
        remark += f"; not in the mean: {', '.join(sorted(left_out))}" if left_out else ""
        row = dict.fromkeys(by, MEAN) | {"failure_type": kind, "first": first, "second": second, "of": of}
        row |= {
            "measure": measure,
            "coefficient": defined["coefficient"].mean() if len(defined) else nan,
            "low": nan,
            "high": nan,
        }
        row |= {"interval": "not available: a mean over groups", "n_answers": int(rows["n_answers"].sum())}
        row |= {"n_entries": int(rows["n_entries"].max()), "n_unscored": int(rows["n_unscored"].sum())}
        row |= {"n_unmatched": int(rows["n_unmatched"].sum())}
        row |= {"reason": "" if len(defined) else "undefined in every group", "remark": remark}
        found.append(pd.DataFrame([row]))
    return found


def agreement_by_arm(
    first: pd.DataFrame,
    second: pd.DataFrame,
    baseline: str = "flat",
) -> pd.DataFrame:
    """Whether two judges differ more, or in another direction, on one arm than on the baseline.

    An error that is the same in every arm shrinks a difference; one that differs between arms makes one. Models are
    pooled. Answers scored by both judges only, of entries of a model that both arms have.

    Returns
    -------
    DataFrame
        One row per failure type, setting and arm: ``rate_agreed`` on fail or pass, ``rate_agreed_baseline`` in [0, 1];
        ``difference_pp`` = arm − baseline with ``low_pp``, ``high_pp``; ``shift_pp``: how much higher the second
        judge's rate of failing answers is than the first's in this arm, and ``shift_difference_pp`` = that of the arm −
        that of the baseline, with ``shift_low_pp``, ``shift_high_pp``: by so much the second judge would move the
        arm's effect. 95 %, jackknife over entries, the same in both arms, with t (``interval``; in simulations of
        20 to 100 entries both cover 94.7 % on average, at least 92.5 %); ``n_answers``, ``n_answers_baseline``,
        ``n_entries``; ``remark`` in words.

    Raises
    ------
    InputError
        As ``judge_agreement``; also when the baseline is not among the structures.
    """
    pairs, labels = _matched(first, second, [])
    pairs = pairs[pairs["failed_1"].notna() & pairs["failed_2"].notna()]
    if len(pairs) and baseline not in set(pairs["structure"]):
        raise choice("baseline", baseline, set(pairs["structure"]))
    told = ("structure", "structurer", "structurer_options", "taxonomy", "partition_draw", "replicate", "model")
    settings = [column for column in ARM if column in pairs and column not in (*told, *_JUDGE)]
    settings = ["failure_type", *[column for column in settings if pairs[column].nunique() > 1]]
    names = ["structure", "structurer", "replicate"]
    arms = [_arm_name(*row) for row in pairs.reindex(columns=names).itertuples(index=False)]
    pairs = pairs.assign(
        arm=arms, agrees=pairs["failed_1"].eq(pairs["failed_2"]) + 0.0, shift=pairs["failed_2"] - pairs["failed_1"]
    )
    rows = []
    for key, group in pairs.groupby(settings, sort=False):
        arms = dict(list(group.groupby("arm")))
        for arm, held in arms.items():
            if arm == baseline or baseline not in arms:
                continue
            base = _shared_cells(arms[baseline], held)
            if not len(base):
                continue
            sides = _by_entry(_shared_cells(held, base), base)
            row = dict(zip(settings, key, strict=True)) | labels | {"arm": arm, "baseline": baseline}
            row["structure"] = held["structure"].iloc[0]
            rows.append(row | _arm_row(*sides) | {"n_entries": len(sides[0])})
    table = pd.DataFrame(rows)
    if len(table):
        table["order"] = table["arm"].str.endswith("(A/A)").map({True: 0, False: 1})
        table = sort_arms(table, [*settings, "order", "structure", "arm"]).drop(columns=["order", "structure"])
    return stamped(table, first)


def _shared_cells(one: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    """The answers of one arm in the models and entries that the other arm has too."""
    cells = ["model", "entry_id"]
    return one[pd.MultiIndex.from_frame(one[cells]).isin(pd.MultiIndex.from_frame(other[cells]))]


def _by_entry(*sides: pd.DataFrame) -> list[np.ndarray]:
    """Agreements, shifts and answers of the same entries in each table: one row per entry."""
    sums = [side.assign(n=1.0).groupby("entry_id")[["agrees", "shift", "n"]].sum() for side in sides]
    return [one.to_numpy(dtype=float) for one in sums]


def _arm_name(structure: str, structurer: object, replicate: object) -> str:
    again = structure == "flat" and replicate not in (0, NONE) and not pd.isna(replicate)
    return "flat (A/A)" if again else display_structure(structure, structurer)


def _arm_row(arm: np.ndarray, base: np.ndarray) -> dict:
    """Rates and their differences from sums by entry: agreements, shifts, answers."""
    rates = [100 * side[:, :2].sum(axis=0) / side[:, 2].sum() for side in (arm, base)]
    (agree, shift), (agree_base, _) = rates
    gap = rates[0] - rates[1]
    half, interval = np.full(2, nan), "not available: one entry"
    if len(arm) > 1:
        left = [side.sum(axis=0) - side for side in (arm, base)]  # without one entry
        half = half_width(100 * np.subtract(*(side[:, :2] / side[:, 2:] for side in left)))
        interval = "jackknife over entries, t" if half.max() > 1e-9 else "not available: no variation"
        half[half < 1e-9] = nan  # a zero width would look certain
    (low, shift_low), (high, shift_high) = gap - half, gap + half
    moved = shift_low > 0 or shift_high < 0
    found = "the second judge would move this arm's effect" if moved else "no differential shift is shown"
    return {
        "rate_agreed": agree / 100, "rate_agreed_baseline": agree_base / 100, "difference_pp": gap[0],
        "low_pp": low, "high_pp": high, "shift_pp": shift, "shift_difference_pp": gap[1],
        "shift_low_pp": shift_low, "shift_high_pp": shift_high, "interval": interval, "remark": found,
        "n_answers": int(arm[:, 2].sum()), "n_answers_baseline": int(base[:, 2].sum()),
    }  # fmt: skip
