"""Agreement where both judges use one class, or one judge scored nothing: said in words, never nan alone."""

from __future__ import annotations

import math
import warnings

import pandas as pd
import pytest
from test_agreement import judged

from structmem.agreement import MEAN, judge_agreement
from structmem.reliability import ONE_CLASS, krippendorff_alpha
from structmem.tables import show

FIVE = {f"e{place}": [1] for place in range(5)}


def test_two_judges_five_entries_all_score_one():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = judge_agreement(judged(FIVE), judged(FIVE, "two"))
    raw = table[table["measure"] == "raw agreement"]
    corrected = table.drop(raw.index)
    assert (raw["coefficient"] == 1).all() and raw["low"].between(0.5, 0.6).all() and (raw["high"] == 1).all()
    assert len(corrected) == 5 and corrected["coefficient"].isna().all()
    assert set(corrected["reason"]) == {ONE_CLASS} and set(table["n_answers"]) == {5}
    text = str(show(table))
    assert "undefined: one class" in text and "nan" not in text


def test_one_judge_that_scored_nothing():
    nothing = judged({entry: [None] for entry in FIVE}, "two")
    table = judge_agreement(judged(FIVE), nothing)
    assert table["coefficient"].isna().all() and set(table["n_unscored"]) == {5} and set(table["n_answers"]) == {0}
    assert set(table["reason"]) == {"not available: no answer is scored by both"}
    assert "nan" not in str(show(table))


def test_one_judge_with_a_single_class_says_why_kappa_is_zero():
    table = judge_agreement(
        judged({f"e{i}": [1 if i else 5] for i in range(20)}), judged({f"e{i}": [1] for i in range(20)})
    )
    kappas = table[table["measure"].str.contains("kappa")]
    assert (kappas["coefficient"].abs() < 1e-12).all() and kappas["remark"].str.contains("single class").all()
    raw = table[table["measure"] == "raw agreement"]
    assert raw["coefficient"].tolist() == pytest.approx([0.95, 0.95])


@pytest.mark.parametrize(
    ("one", "two", "why"),
    [
        ({"a": [1, 2, 3]}, {"a": [1, 2, 5]}, "one entry"),
        ({"a": [1], "b": [5], "c": [3]}, {"a": [1], "b": [5], "c": [3]}, "perfect agreement"),
        ({"a": [1], "b": [5]}, {"a": [5], "b": [1]}, "perfect disagreement"),
        ({"a": [1, 5, 3], "b": [1, 5, 3]}, {"a": [1, 4, 5], "b": [1, 4, 5]}, "no variation"),
        (FIVE | {"z": [5]}, FIVE | {"z": [1]}, "one class without one of 6 entries"),
    ],
)
def test_no_interval_of_kappa_says_why(one, two, why):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = judge_agreement(judged(one), judged(two, "two"))
    row = table[table["measure"] == "Cohen's kappa, quadratic weights"].iloc[0]
    assert row["interval"] == f"not available: {why}" and math.isnan(row["low"]) and math.isnan(row["high"])
    assert not math.isnan(row["coefficient"]) and why in str(show(table))


def test_averages_over_domains_skip_an_undefined_group_and_say_so():
    one, two = [], []
    for domain, scores in (
        ("health", [(1, 1), (5, 5), (1, 5), (5, 5)]),
        ("finance", [(1, 1)] * 4),
        (None, [(1, 1), (5, 1), (5, 5)]),
    ):
        for place, pair in enumerate(scores):
            for side, score, judge in ((one, pair[0], "one"), (two, pair[1], "two")):
                side.append(judged({f"{domain}-{place}": [score]}, judge, memory_domain=domain))
    table = judge_agreement(pd.concat(one), pd.concat(two), by="memory_domain")
    kappa = table[(table["measure"] == "Cohen's kappa")].set_index("memory_domain")
    assert kappa.loc["finance", "reason"] == ONE_CLASS and math.isnan(kappa.loc["finance", "coefficient"])
    mean = kappa.loc[MEAN]
    assert mean["coefficient"] == pytest.approx(
        (kappa.loc["health", "coefficient"] + kappa.loc["(none)", "coefficient"]) / 2
    )
    assert mean["remark"] == "2 of 3 groups; not in the mean: 1 undefined: one class"
    assert mean["n_answers"] == 11
    only = judge_agreement(pd.concat(one)[4:8], pd.concat(two)[4:8], by="memory_domain")
    mean = only[(only["memory_domain"] == MEAN) & (only["measure"] == "Cohen's kappa")].iloc[0]
    assert math.isnan(mean["coefficient"]) and mean["reason"] == "undefined in every group"


def test_alpha_of_one_class_and_of_one_rater():
    one = krippendorff_alpha(pd.DataFrame({"a": [2, 2, 2], "b": [2, 2, None]})).iloc[0]
    assert math.isnan(one["coefficient"]) and one["reason"] == ONE_CLASS and one["n_units"] == 2
    alone = krippendorff_alpha(pd.DataFrame({"a": [1, 2, 3], "b": [None] * 3})).iloc[0]
    assert alone["reason"] == "not available: no unit has two ratings"
