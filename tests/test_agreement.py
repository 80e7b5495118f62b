"""Agreement of judges: published worked examples, other ways of computing, one class, missing scores, arms."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.inter_rater import cohens_kappa

from structmem.agreement import MEAN, agreement_by_arm, judge_agreement
from structmem.errors import InputError
from structmem.planted import simulated_scores
from structmem.planted_judges import misjudged
from structmem.reliability import (
    alphas_of_pairs,
    distance_of,
    half_width,
    kappas,
    krippendorff_alpha,
    tables_by_cluster,
    within_one,
)
from structmem.tables import show

GAP = math.nan
# Krippendorff (2011), 'Computing Krippendorff's alpha-reliability': 4 observers, 12 units, missing values.
RELIABILITY = np.array(
    [
        [1, 2, 3, 3, 2, 1, 4, 1, 2, GAP, GAP, GAP],
        [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, GAP, 3],
        [GAP, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, GAP],
        [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, GAP],
    ]
).T


def judged(scores, judge="one", **settings):
    """Results rows: ``scores`` maps an entry to the scores of its answers, None for a lost verdict."""
    base = {"failure_type": "cross_domain", "model": "m", "structure": "flat", "replicate": 0, "judge": judge}
    base |= {"judge_model": "", "threshold": 3.0, "high_is_bad": True, "scale_low": 1, "scale_high": 5}
    table = [
        base | settings | {"entry_id": entry, "generation": place, "score": score}
        | {"status": "no_verdict" if score is None else "ok", "status_reason": "timeout" if score is None else None}
        for entry, values in scores.items() for place, score in enumerate(values)
    ]  # fmt: skip
    return pd.DataFrame(table).astype({"score": float})


def of(table, measure, kind="score"):
    rows = table[(table["measure"].str.contains(measure)) & (table["of"] == kind)]
    assert len(rows) == 1, rows
    return rows.iloc[0]


# ------------------------------------------------------------------------------------------------------------- alpha


@pytest.mark.parametrize(("level", "value"), [("nominal", 0.743), ("ordinal", 0.815), ("interval", 0.849)])
def test_alpha_of_the_published_example(level, value):
    found = krippendorff_alpha(RELIABILITY, level).iloc[0]
    assert round(found["coefficient"], 3) == value
    assert found["low"] < value < found["high"] and found["interval"] == "jackknife over clusters, t on the atanh scale"
    assert (found["n_units"], found["n_raters"], found["n_ratings"], found["n_left_out"]) == (11, 4, 40, 1)


def test_alpha_of_two_observers_and_two_classes():
    # The same paper's first example, ten units coded 0 or 1 by two observers: alpha .095.
    a, b = [0, 1, 0, 0, 0, 0, 0, 0, 1, 0], [1, 1, 1, 0, 0, 1, 0, 0, 0, 0]
    assert round(krippendorff_alpha(np.array([a, b]).T, "nominal")["coefficient"].iloc[0], 3) == 0.095


def by_definition(ratings, level):
    """Alpha by walking over pairs of ratings: 1 − mean disagreement within units / mean disagreement of all."""
    units = [[value for value in row if not math.isnan(value)] for row in ratings]
    units = [unit for unit in units if len(unit) > 1]
    everything = [value for unit in units for value in unit]
    count = {value: everything.count(value) for value in everything}

    def apart(a, b):
        if level == "nominal":
            return float(a != b)
        if level == "interval":
            return (a - b) ** 2
        low, high = min(a, b), max(a, b)
        return (sum(n for value, n in count.items() if low <= value <= high) - (count[a] + count[b]) / 2) ** 2

    n = len(everything)
    seen = sum(apart(a, b) / (len(unit) - 1) for unit in units for a, b in itertools.permutations(unit, 2)) / n
    chance = sum(apart(a, b) for a, b in itertools.permutations(everything, 2)) / (n * (n - 1))
    return 1 - seen / chance if chance else math.nan


ratings = st.lists(
    st.lists(st.one_of(st.integers(1, 5).map(float), st.just(GAP)), min_size=3, max_size=3), min_size=2, max_size=8
)


@settings(max_examples=60, deadline=None)
@given(ratings, st.sampled_from(["nominal", "ordinal", "interval"]))
def test_alpha_by_the_definition(rows, level):
    found = krippendorff_alpha(np.array(rows), level).iloc[0]
    used = [row for row in rows if sum(not math.isnan(value) for value in row) > 1]
    if not used:
        assert found["reason"] == "not available: no unit has two ratings"
    elif math.isnan(expected := by_definition(rows, level)):
        assert math.isnan(found["coefficient"]) and found["reason"] == "undefined: one class"
    else:
        assert found["coefficient"] == pytest.approx(expected, abs=1e-9) and not found["reason"]


def test_clusters_make_the_interval_of_alpha_wider():
    rng = np.random.default_rng(3)
    a = rng.integers(1, 6, 60).astype(float)
    pairs = np.column_stack([a, np.where(rng.random(60) < 0.6, a, rng.integers(1, 6, 60))])
    single = krippendorff_alpha(pairs, "ordinal").iloc[0]
    copies = krippendorff_alpha(np.repeat(pairs, 4, axis=0), "ordinal", np.repeat(np.arange(60), 4)).iloc[0]
    unaware = krippendorff_alpha(np.repeat(pairs, 4, axis=0), "ordinal").iloc[0]
    assert copies["high"] - copies["low"] == pytest.approx(single["high"] - single["low"], rel=0.1)
    assert unaware["high"] - unaware["low"] < 0.7 * (copies["high"] - copies["low"])


@pytest.mark.parametrize(
    ("ratings", "more", "words"),
    [
        (RELIABILITY, {"level": "ratio"}, "level must be one of"),
        (RELIABILITY[:, :1], {}, "two or more"),
        ([["high", "low"]], {}, "must be numbers"),
        (RELIABILITY, {"clusters": [1, 2]}, "one label per row"),
    ],
)
def test_what_alpha_refuses(ratings, more, words):
    with pytest.raises(InputError, match=words):
        krippendorff_alpha(ratings, **more)


# ------------------------------------------------------------------------------------------------------------- kappa


def test_agreement_of_a_hand_worked_table():
    # 2 × 2 by hand: both fail 20, both pass 15, 5 and 10 apart: p_o = .7, p_e = .5·.6 + .5·.4 = .5, kappa = .4.
    pairs = [(4, 4)] * 20 + [(4, 2)] * 5 + [(2, 4)] * 10 + [(2, 2)] * 15
    one = judged({f"e{i}": [a] for i, (a, _) in enumerate(pairs)})
    two = judged({f"e{i}": [b] for i, (_, b) in enumerate(pairs)}, "two")
    table = judge_agreement(one, two)
    raw, kappa = of(table, "raw", "fail or pass"), of(table, "kappa", "fail or pass")
    assert raw["coefficient"] == pytest.approx(0.7) and kappa["coefficient"] == pytest.approx(0.4)
    assert kappa["low"] < 0.4 < kappa["high"]
    # The large-sample standard error of this table is .129 (statsmodels); the jackknife is near it.
    error = cohens_kappa([[20, 5], [10, 15]]).std_kappa
    assert kappa["high"] - kappa["low"] == pytest.approx(2 * 1.96 * error, rel=0.15)
    assert set(table["n_answers"]) == {50} and set(table["first"]) == {"one"} and set(table["second"]) == {"two"}


def test_weighted_kappas_count_the_distance_on_the_scale():
    rng = np.random.default_rng(0)
    a = rng.integers(1, 6, 80)
    b = np.clip(a + rng.integers(-1, 2, 80), 1, 5)
    keep = (a != 4) & (b != 4)  # a class that nobody uses keeps its place on the scale
    a, b = a[keep], b[keep]
    table = judge_agreement(
        judged({f"e{i}": [v] for i, v in enumerate(a)}), judged({f"e{i}": [v] for i, v in enumerate(b)}, "two")
    )
    for name, power in (("linear", 1), ("quadratic", 2)):
        seen = np.mean(np.abs(a - b) ** power)
        chance = np.mean(np.abs(a[:, None] - b[None, :]) ** power)
        assert of(table, f"kappa, {name}")["coefficient"] == pytest.approx(1 - seen / chance)
    assert of(table, "alpha")["coefficient"] == pytest.approx(
        krippendorff_alpha(np.column_stack([a, b]), "ordinal")["coefficient"].iloc[0]
    )


def test_the_interval_of_kappa_leaves_out_one_entry_at_a_time():
    """By statsmodels' kappa of every table that lacks an entry, and the formulas written out."""
    rng = np.random.default_rng(1)
    one = {f"e{i}": rng.integers(1, 6, 2).tolist() for i in range(12)}
    two = {entry: [min(max(v + int(rng.integers(-1, 2)), 1), 5) for v in values] for entry, values in one.items()}
    row = of(judge_agreement(judged(one), judged(two, "two")), "kappa, quadratic")

    def kappa(entries):
        table = np.zeros((5, 5))
        for entry in entries:
            for a, b in zip(one[entry], two[entry], strict=True):
                table[a - 1, b - 1] += 1
        return cohens_kappa(table, wt="quadratic", return_results=False)

    m, value = len(one), kappa(one)
    left = [kappa([e for e in one if e != out]) for out in one]
    pseudo = np.array([m * value - (m - 1) * each for each in left])
    error = pseudo.std(ddof=1) / math.sqrt(m)
    freedom = min(m - 1, 2 * m / (stats.kurtosis(pseudo, fisher=False) - 1))
    half = stats.t.ppf(0.975, freedom) * error / (1 - value**2)
    assert (row["low"], row["high"]) == pytest.approx(
        (math.tanh(math.atanh(value) - half), math.tanh(math.atanh(value) + half))
    )
    assert row["interval"] == "jackknife over entries, t on the atanh scale"


def test_few_entries_with_all_the_variance_have_few_degrees_of_freedom():
    rng = np.random.default_rng(0)
    even = rng.standard_normal(400)
    expected = stats.t.ppf(0.975, 399) * stats.sem(even)  # the jackknife of a mean is the t interval
    assert half_width((even.sum() - even) / 399) == pytest.approx(expected, rel=1e-3)
    spiked = np.zeros(400)
    spiked[0] = 1.0
    assert half_width((1 - spiked) / 399) == pytest.approx(stats.t.ppf(0.975, 800 / (398 + 1 / 399)) / 400, rel=1e-2)
    several = np.column_stack([even, spiked])
    assert half_width((several.sum(axis=0) - several) / 399)[0] == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("cut", [(-0.84, -0.25, 0.25, 0.84), (0.8, 1.2, 1.6, 2.0)])
def test_the_jackknife_covers_with_twenty_entries(cut):
    """Three answers of each entry; a percentile bootstrap over entries holds kappa 87 % of the time (second case)."""
    rng, classes, distance = (
        np.random.default_rng(2),
        np.arange(1.0, 6.0),
        distance_of(np.arange(1.0, 6.0), "quadratic"),
    )

    def tables(n):
        answers = np.sqrt(0.5) * (rng.standard_normal((n, 1, 1)) + rng.standard_normal((n, 3, 1)))
        scores = 1.0 + np.searchsorted(cut, (answers + 0.5 * rng.standard_normal((n, 3, 2))) / np.sqrt(1.25))
        return tables_by_cluster(scores.reshape(-1, 2), classes, np.repeat(np.arange(n), 3))

    samples, many = [tables(20) for _ in range(600)], tables(60_000).sum(axis=0)[None]
    for statistic in (lambda t: kappas(t, distance), lambda t: alphas_of_pairs(t, classes, "ordinal")):
        truth = statistic(many)[0]
        found = [within_one(sample, statistic) for sample in samples]
        assert 0.91 < np.mean([one["low"] <= truth <= one["high"] for one in found]) < 0.985


def test_answers_of_one_entry_are_no_independent_observations():
    once = {f"e{i}": [4 if i % 3 else 1] for i in range(30)}
    other = {f"e{i}": [4 if i % 4 else 1] for i in range(30)}
    thrice, other3 = ({entry: values * 3 for entry, values in side.items()} for side in (once, other))
    single = judge_agreement(judged(once), judged(other, "two"))
    copied = judge_agreement(judged(thrice), judged(other3, "two"))
    for measure in ("raw", "kappa", "alpha"):
        a, b = of(single, measure, "fail or pass"), of(copied, measure, "fail or pass")
        assert a["coefficient"] == pytest.approx(b["coefficient"], abs=0.02)
        assert b["high"] - b["low"] == pytest.approx(a["high"] - a["low"], rel=0.1)
        assert (b["n_answers"], b["n_entries"]) == (90, 30)


def test_unmatched_and_unscored_answers_are_counted_and_left_out():
    one = judged({"a": [1, None, 5], "b": [2, 4, 4], "c": [3]})
    two = judged({"a": [1, 2, None], "b": [2, 4, 1], "d": [3, 3]}, "two")
    row = of(judge_agreement(one, two), "raw")
    assert (row["n_answers"], row["n_entries"], row["n_unscored"], row["n_unmatched"]) == (4, 2, 2, 3)
    assert row["coefficient"] == pytest.approx(0.75)
    nothing = judge_agreement(one[one["entry_id"] == "c"], two[two["entry_id"] == "d"])
    assert set(nothing["reason"]) == {"not available: no answer is scored by both"}
    assert nothing["coefficient"].isna().all()
    assert not len(judge_agreement(one.iloc[:0], two.iloc[:0]))


def test_own_thresholds_and_other_scales():
    one = judged({f"e{i}": [1 + i % 5] for i in range(20)})
    two = judged({f"e{i}": [2 * (i % 5)] for i in range(20)}, "wide", scale_low=0, scale_high=10, threshold=4.0)
    table = judge_agreement(one, two)
    assert of(table, "raw", "fail or pass")["coefficient"] == 1
    assert of(table, "raw")["reason"] == "not available: other scales (1 to 5; 0 to 10)"
    full = of(table, "kappa", "fail or pass")
    assert full["coefficient"] == 1 and full["interval"] == "not available: perfect agreement"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: pd.concat([t, t]), "share their key"),
        (lambda t: pd.concat([t, t.assign(judge="other")]), "several judges"),
        (lambda t: t.assign(judge="echo", echoed=True, echo_overlap=0.6), "echo"),
        (lambda t: t.assign(response="another answer"), "different answers"),
        (lambda t: t.drop(columns="status"), "lack the columns"),
        (lambda t: t.assign(score=9.0), "integer from 1 to 5"),
    ],
)
def test_what_agreement_refuses(change, words):
    one = judged({"a": [1, 2], "b": [3, 4]}, response="an answer")
    with pytest.raises(InputError, match=words):
        judge_agreement(one, change(one.assign(judge="two")))


@pytest.mark.parametrize(("by", "words"), [("judge", "by names"), ("colour", "by must be one of")])
def test_groups_that_cannot_be(by, words):
    one = judged({"a": [1, 2]})
    with pytest.raises(InputError, match=words):
        judge_agreement(one, one, by=by)


def test_a_group_does_not_depend_on_the_others():
    rates = pd.DataFrame([("m", s, r) for s, r in (("flat", 0.6), ("dynamic", 0.4))])
    truth = simulated_scores(rates.set_axis(["model", "structure", "failure_rate"], axis=1), 40)
    other = misjudged(truth, 0.8, 0.9)
    by_arm = judge_agreement(truth, other, by="structure")
    alone = judge_agreement(*(t[t["structure"] == "dynamic"] for t in (truth, other)))
    mine = by_arm[by_arm["structure"] == "dynamic"].drop(columns="structure").reset_index(drop=True)
    pd.testing.assert_frame_equal(mine, alone[mine.columns])
    mean = by_arm[by_arm["structure"] == MEAN].iloc[0]
    rows = by_arm[(by_arm["measure"] == "raw agreement") & (by_arm["of"] == "score") & (by_arm["structure"] != MEAN)]
    assert mean["coefficient"] == pytest.approx(rows["coefficient"].mean()) and mean["remark"] == "2 of 2 groups"


def test_the_table_prints():
    one, two = judged({"a": [1, 2, 5], "b": [3, 4, 1]}), judged({"a": [1, 3, 5], "b": [3, 4, 2]}, "two")
    text = str(show(judge_agreement(one, two)))
    assert "Krippendorff's alpha, ordinal" in text and "nan" not in text


# -------------------------------------------------------------------------------------------------------------- arms


def arms(rate=0.5, n=150, structures=("flat", "dynamic")):
    rates = pd.DataFrame([("m", s, rate) for s in structures], columns=["model", "structure", "failure_rate"])
    return simulated_scores(rates, n)


def test_a_judge_that_errs_more_on_one_arm_is_found():
    truth = arms()
    even = agreement_by_arm(truth, misjudged(truth, 0.9, 0.9)).set_index("arm")
    uneven = misjudged(truth, {"flat": 0.9, "dynamic": 0.5}, 0.95)
    found = agreement_by_arm(truth, uneven).set_index("arm")
    assert even.loc["dynamic", "remark"] == "no differential shift is shown"
    row = found.loc["dynamic"]
    assert row["remark"] == "the second judge would move this arm's effect" and row["shift_high_pp"] < 0
    assert found.loc["flat (A/A)", "shift_low_pp"] < 0 < found.loc["flat (A/A)", "shift_high_pp"]
    # By hand: rates of failing answers, second judge − first, arm − baseline.
    fails = [t.assign(bad=t["score"] >= 3).groupby(["structure", "replicate"])["bad"].mean() for t in (truth, uneven)]
    shift = 100 * (fails[1] - fails[0])
    assert row["shift_difference_pp"] == pytest.approx(shift["dynamic", 0] - shift["flat", 0])
    agreed = (truth["score"] >= 3) == (uneven["score"] >= 3)
    rate = agreed.groupby([truth["structure"], truth["replicate"]]).mean()
    assert row["rate_agreed"] == pytest.approx(rate["dynamic", 0])
    assert row["difference_pp"] == pytest.approx(100 * (rate["dynamic", 0] - rate["flat", 0]))


def test_the_interval_between_arms_is_that_of_paired_differences():
    """With as many answers of each entry in both arms it is the t interval of the entries' differences."""
    truth = arms(n=60)
    row = agreement_by_arm(truth, misjudged(truth, 0.8, 0.9, seed=3)).set_index("arm").loc["dynamic"]
    again = misjudged(truth, 0.8, 0.9, seed=3)
    rows = truth.assign(moved=100.0 * ((again["score"] >= 3).astype(int) - (truth["score"] >= 3)))
    means = rows[rows["replicate"] == 0].pivot_table("moved", "entry_id", "structure")
    gaps = means["dynamic"] - means["flat"]
    freedom = min(59, 120 / (stats.kurtosis(gaps, fisher=False) - 1))
    half = stats.t.ppf(0.975, freedom) * stats.sem(gaps)
    assert row["shift_high_pp"] - row["shift_difference_pp"] == pytest.approx(half)
    assert row["shift_difference_pp"] - row["shift_low_pp"] == pytest.approx(half)
    assert row["interval"] == "jackknife over entries, t"


def test_arms_without_a_baseline_or_variation():
    truth = arms(n=20)
    same = agreement_by_arm(truth, truth.assign(judge="two"))
    assert set(same["interval"]) == {"not available: no variation"} and same["low_pp"].isna().all()
    with pytest.raises(InputError, match="baseline must be one of"):
        agreement_by_arm(truth, truth, baseline="rag")
    assert not len(agreement_by_arm(truth.iloc[:0], truth.iloc[:0]))


def test_arms_are_compared_in_the_models_and_entries_that_both_have():
    rates = pd.DataFrame({"model": "a", "structure": ["flat", "dynamic"], "failure_rate": [0.6, 0.3]})
    both = simulated_scores(rates, 30).query("replicate == 0")
    alone = both.query("structure == 'flat'").assign(model="b")  # a model without the arm, in which the judges differ
    first = pd.concat([both, alone], ignore_index=True)
    second = first.assign(judge="two")
    second.loc[second["model"] == "b", "score"] = 6 - first["score"]
    row = agreement_by_arm(first, second).iloc[0]
    assert (row["rate_agreed"], row["rate_agreed_baseline"], row["shift_difference_pp"]) == (1, 1, 0)
    assert row["remark"] == "no differential shift is shown"
    assert (row["n_answers"], row["n_answers_baseline"], row["n_entries"]) == (90, 90, 30)
    nothing = pd.concat([both.query("structure == 'dynamic'"), alone], ignore_index=True)
    assert not len(agreement_by_arm(nothing, nothing.assign(judge="two")))
