"""Sensitivity, specificity and corrected rates: published numbers, hand-worked tables, planted errors, gaps."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from structmem.correction import corrected_rate, judge_accuracy
from structmem.errors import InputError
from structmem.intervals import wilson
from structmem.planted import simulated_scores
from structmem.planted_judges import misjudged
from structmem.stats import failure_rate
from structmem.tables import show
from structmem.verification import Share, difference, rate_of_arm, rate_of_person, share_of_sum, weighted_share


def audited(cells, **columns):
    """Audited answers of given counts: {(judge fails, person fails): count or (count, weight)}."""
    table = []
    for (judge, person), many in cells.items():
        count, weight = many if isinstance(many, tuple) else (many, 1.0)
        row = {"judge_failed": judge, "human_failed": person, "weight": weight, "stratum": f"score {judge}"}
        table += [row | {"failure_type": "cross_domain", "structure": "flat", "judge": "j", "judge_model": ""}] * count
    found = pd.DataFrame(table).assign(entry_id=[f"e{place}" for place in range(len(table))], **columns)
    return found.astype({"judge_failed": "boolean", "human_failed": "boolean"})


def planted(sensitivity, specificity, rates=(("flat", 0.6), ("dynamic", 0.4)), n=200, seed=0):
    """True results, the same by an erring judge, and an audit of all or some of the answers."""
    arms = pd.DataFrame([("m", *arm) for arm in rates], columns=["model", "structure", "failure_rate"])
    truth = simulated_scores(arms, n, seed=seed)
    return truth, misjudged(truth, sensitivity, specificity, seed=seed + 1)


def sampled(truth, judged, per_stratum=None, seed=0, by=("structure", "replicate")):
    """An audit of the answers by strata of arm × judge's score."""
    rows = judged.assign(
        judge_failed=pd.array(judged["score"] >= 3, dtype="boolean"),
        human_failed=pd.array(truth["score"] >= 3, dtype="boolean"),
        stratum=judged[[*by, "score"]].astype(str).agg(", ".join, axis=1),
        weight=1.0,
    )
    if per_stratum is None:
        return rows
    rng, parts = np.random.default_rng(seed), []
    for _, held in rows.groupby("stratum"):
        part = held.iloc[rng.permutation(len(held))[:per_stratum]]
        parts.append(part.assign(weight=len(held) / len(part)))
    return pd.concat(parts)


# ----------------------------------------------------------------------------------------------------------- numbers


def test_sensitivity_of_a_hand_worked_table():
    # The person fails 40, of which the judge fails 30; passes 60, of which the judge passes 54.
    row = judge_accuracy(audited({(True, True): 30, (False, True): 10, (True, False): 6, (False, False): 54})).iloc[0]
    assert row["sensitivity"] == pytest.approx(0.75) and row["specificity"] == pytest.approx(0.9)
    assert (row["n_answers"], row["n_human_failed"], row["n_human_passed"], row["n_entries"]) == (100, 40, 60, 100)
    # A sample without weights is a binomial one: the interval is near Wilson's.
    assert (row["sensitivity_low"], row["sensitivity_high"]) == pytest.approx(wilson(30, 40), abs=0.03)
    assert (row["specificity_low"], row["specificity_high"]) == pytest.approx(wilson(54, 60), abs=0.03)


def test_weights_undo_the_sampling_by_score():
    # 1,000 answers, 100 of them failed by the judge; 50 of each side were read. Whole numbers of the population:
    # judge fails 100 (person fails 80), passes 900 (person fails 36).
    cells = {(True, True): (40, 2.0), (True, False): (10, 2.0), (False, True): (2, 18.0), (False, False): (48, 18.0)}
    row = judge_accuracy(audited(cells)).iloc[0]
    assert row["sensitivity"] == pytest.approx(80 / 116) and row["specificity"] == pytest.approx(864 / 884)
    # Without a single miss among the 50 there may still be many among the 900.
    none = {key: count for key, count in cells.items() if key != (False, True)} | {(False, False): (50, 18.0)}
    row = judge_accuracy(audited(none)).iloc[0]
    assert row["sensitivity"] == 1 and 0.45 < row["sensitivity_low"] < 0.65


def test_answers_left_empty_are_made_up_for_within_their_stratum():
    cells = {(True, True): (40, 2.0), (True, False): (10, 2.0), (False, True): (2, 18.0), (False, False): (48, 18.0)}
    full = audited(cells)
    half = full.copy()
    half.loc[full.index[::2], "human_failed"] = pd.NA  # every cell has an even number of neighbours
    one, two = judge_accuracy(full).iloc[0], judge_accuracy(half).iloc[0]
    assert two["sensitivity"] == pytest.approx(one["sensitivity"])
    assert two["n_empty"] == 50 and two["n_answers"] == 50
    gone = full.assign(human_failed=full["human_failed"].mask(~full["judge_failed"]))
    row = judge_accuracy(gone).iloc[0]
    assert row["remark"] == "no score in 1 of 2 strata, which are not represented"


def of_counts(hits, n):
    return Share(hits / n, *wilson(hits, n), n)


@settings(max_examples=80, deadline=None)
@given(*[st.integers(1, 40)] * 4, st.integers(0, 50))
def test_a_pooled_rate_is_rogan_and_gladens(a, b, c, d, failed):
    rate, whole, first, second = (
        of_counts(*one) for one in ((failed, 50), (a + b, a + b + c + d), (a, a + b), (c, c + d))
    )
    sensitivity, specificity = a / (a + c), d / (b + d)
    if sensitivity + specificity > 1 + 1e-6:
        found = rate_of_arm(rate, whole, first, second)
        expected = (rate.value + specificity - 1) / (sensitivity + specificity - 1)
        assert found.value == pytest.approx(expected)
        assert found.low <= max(expected, 0) and found.high >= min(expected, 1)
        assert 0 <= found.low and found.high <= 1


def test_limits_of_a_pooled_rate_are_near_those_of_the_delta_method():
    """Many answers, so that limits are two standard errors; derivatives by differences, shares independent."""
    shares = [of_counts(*one) for one in ((3000, 10_000), (8000, 20_000), (2400, 3000), (300, 3000))]

    def estimate(p, r, a, b):
        sensitivity = r * a / (r * a + (1 - r) * b)
        specificity = (1 - r) * (1 - b) / ((1 - r) * (1 - b) + r * (1 - a))
        return (p + specificity - 1) / (sensitivity + specificity - 1)

    point, variance = np.array([one.value for one in shares]), 0.0
    for place, one in enumerate(shares):
        step = np.eye(4)[place] * 1e-5
        slope = (estimate(*(point + step)) - estimate(*(point - step))) / 2e-5
        variance += slope**2 * one.value * (1 - one.value) / one.effective
    found = rate_of_arm(*shares)
    assert (found.high - found.low) / 2 == pytest.approx(1.959964 * math.sqrt(variance), rel=0.01)


def test_of_one_arm_a_pooled_rate_has_the_limits_of_its_own():
    rng = np.random.default_rng(4)
    entries, person = np.repeat(np.arange(80), 3), np.repeat(rng.random(80) < 0.4, 3)
    judge = np.where(rng.random(240) < 0.85, person, ~person)
    rate, first, second = (
        weighted_share(hit[mine].astype(float), np.ones(mine.sum()), entries[mine])
        for hit, mine in ((judge, judge | True), (person, judge), (person, ~judge))
    )
    own, pooled = rate_of_person(rate, first, second), rate_of_arm(rate, rate, first, second)
    assert pooled.value == pytest.approx(own.value)
    assert (pooled.low, pooled.high) == pytest.approx((own.low, own.high), abs=0.01)


def test_pooled_limits_cover_in_both_arms():
    rng, n, rates, held = np.random.default_rng(1), 60, (0.5, 0.3), [[], []]
    for _ in range(250):
        hard = rng.random(n)[:, None]  # entries that fail in one arm tend to fail in the other
        person = np.stack([(hard + rng.random((n, 3)) < math.sqrt(2 * p)) for p in rates])
        judge = np.where(person, rng.random(person.shape) < 0.85, rng.random(person.shape) > 0.9)
        entries = np.broadcast_to(np.arange(n)[None, :, None], person.shape)
        arms = [weighted_share(one.mean(axis=1), np.ones(n), np.arange(n), 3) for one in judge]
        whole = weighted_share(judge.mean(axis=2).ravel(), np.ones(2 * n), np.tile(np.arange(n), 2), 3)
        sides = []
        for failed in (True, False):
            some = rng.permutation(np.flatnonzero(judge == failed))[:40]
            sides.append(weighted_share(person.ravel()[some].astype(float), np.ones(len(some)), entries.ravel()[some]))
        for place, p in enumerate(rates):
            found = rate_of_arm(arms[place], whole, *sides)
            held[place].append(found.low <= p <= found.high)
    for several in held:
        assert 0.91 < np.mean(several) < 0.99  # 95 % with three Monte Carlo errors (.014 each)


def test_newcombe_of_a_published_example():
    # Newcombe (1998), example (a): 56/70 − 48/80, method 10: .0524 to .3339.
    one, two = (Share(x / n, *wilson(x, n), n) for x, n in ((56, 70), (48, 80)))
    assert difference(one, two) == pytest.approx((0.0524, 0.3339), abs=5e-5)


def test_a_weighted_share_counts_entries():
    hit = np.array([1, 0, 0, 1, 1, 0, 1, 0], dtype=float)
    plain = weighted_share(hit, np.ones(8), np.arange(8))
    assert (plain.value, plain.effective) == (0.5, pytest.approx(7))  # 8 − 1: the variance is estimated
    copied = weighted_share(np.tile(hit, 5), np.ones(40), np.tile(np.arange(8), 5))
    assert copied.effective == pytest.approx(plain.effective) and copied.low == pytest.approx(plain.low)
    constant = weighted_share(np.ones(40), np.ones(40), np.tile(np.arange(8), 5))
    assert constant.effective == 8 and constant.high == 1 and constant.low == pytest.approx(wilson(8, 8)[0])
    uneven = weighted_share(np.ones(2), np.array([9.0, 1.0]), np.arange(2))
    assert uneven.effective == pytest.approx(100 / 82)
    assert math.isnan(weighted_share(hit[:0], hit[:0], hit[:0]).value)


@settings(max_examples=80, deadline=None)
@given(*[st.integers(1, 40)] * 4)
def test_the_judges_rate_corrected_by_all_answers_is_the_persons_own(a, b, c, d):
    """Rogan–Gladen with the very answers' sensitivity and specificity gives back the person's rate, with limits."""
    table = audited({(True, True): a, (True, False): b, (False, True): c, (False, False): d})
    row, n = judge_accuracy(table).iloc[0], a + b + c + d
    both = row["sensitivity"] + row["specificity"] - 1
    if abs(both) > 1e-9:
        assert ((a + b) / n + row["specificity"] - 1) / both == pytest.approx((a + c) / n)
    rate, first, second = (Share(x / m, *wilson(x, m), m, pd.Series(dtype=float)) for x, m in (
        (a + b, n), (a, a + b), (c, c + d)))  # fmt: skip
    person = rate_of_person(rate, first, second)
    assert person.value == pytest.approx((a + c) / n) and person.low <= person.value <= person.high
    sensitivity = share_of_sum(rate, first, second)
    assert sensitivity.value == pytest.approx(a / (a + c)) and sensitivity.low <= sensitivity.value <= sensitivity.high


# ------------------------------------------------------------------------------------------------------------ planted


def test_planted_errors_are_recovered_from_a_sampled_audit():
    truth, judged = planted(0.6, 0.98, n=200)
    found = judge_accuracy(sampled(truth, judged, 50)).iloc[0]
    assert found["sensitivity_low"] < 0.6 < found["sensitivity_high"]
    assert found["specificity_low"] < 0.98 < found["specificity_high"]
    true_rate = (truth["score"] >= 3).groupby([truth["structure"], truth["replicate"]]).mean()
    for pool in (False, True):
        table = corrected_rate(judged, sampled(truth, judged, 50), pool=pool).set_index(["structure", "replicate"])
        apart = (table["fr_at_1"] - true_rate.reindex(table.index)).abs()
        nearer = (table["corrected_rate"] - true_rate.reindex(table.index)).abs()
        assert nearer.mean() < 0.5 * apart.mean()
        for arm, row in table.iterrows():
            assert row["corrected_low"] < true_rate[arm] < row["corrected_high"]
        row = table.loc[("dynamic", 0)]
        assert row["low_pp"] < 100 * (true_rate["dynamic", 0] - true_rate["flat", 0]) < row["high_pp"]


def test_an_audit_of_everything_gives_the_true_rates_exactly():
    truth, judged = planted({"flat": 0.9, "dynamic": 0.6}, 0.9, n=60)
    table = corrected_rate(judged, sampled(truth, judged)).set_index(["structure", "replicate"])
    true_rate = (truth["score"] >= 3).groupby([truth["structure"], truth["replicate"]]).mean()
    assert table["corrected_rate"].to_dict() == pytest.approx(true_rate.to_dict())
    expected = 100 * (true_rate["dynamic", 0] - true_rate["flat", 0])
    assert table.loc[("dynamic", 0), "difference_pp"] == pytest.approx(expected)


def test_errors_that_differ_between_arms_are_said_and_bias_the_pooled_correction():
    truth, judged = planted({"flat": 0.95, "dynamic": 0.5}, 0.95, n=200)
    table = judge_accuracy(sampled(truth, judged, 120), by="structure").set_index("structure")
    assert "sensitivity: differs from flat, −" in table.loc["dynamic", "remark"]
    assert "specificity: no difference from flat is shown" in table.loc["dynamic", "remark"]
    assert table.loc["flat", "remark"] == ""
    rate = (truth.loc[truth["structure"] == "dynamic", "score"] >= 3).mean()
    own, pooled = (
        corrected_rate(judged, sampled(truth, judged), pool=pool)
        .set_index("structure")
        .loc["dynamic", "corrected_rate"]
        for pool in (False, True)
    )
    assert own == pytest.approx(rate) and abs(pooled - rate) > 0.02


@pytest.mark.parametrize("failed", [1, 9, 10])
def test_few_answers_of_a_kind_are_not_compared(failed):
    many = {(True, True): 40, (True, False): 10, (False, True): 10, (False, False): 60}
    few = audited({(True, False): 2, (False, True): failed, (False, False): 300}, structure="dynamic")
    table = judge_accuracy(pd.concat([audited(many), few]), by="structure").set_index("structure")["remark"]
    sensitivity, specificity = table["dynamic"].split("; ")
    assert specificity.startswith("specificity: differs from flat, +")
    if failed < 10:
        assert sensitivity == f"sensitivity: too few human failures ({failed}) to compare with flat"
    else:
        assert sensitivity.startswith("sensitivity: differs from flat, −")
    passed = pd.concat([audited(many), audited({(True, True): 30, (True, False): 2}, structure="dynamic")])
    remark = judge_accuracy(passed, by="structure").set_index("structure")["remark"]["dynamic"]
    assert "specificity: too few human passes (2) to compare with flat" in remark


def test_beneficial_entries_fail_on_low_scores():
    arms = pd.DataFrame([("m", "flat", 0.3, "beneficial_memory_usage")])
    truth = simulated_scores(arms.set_axis(["model", "structure", "failure_rate", "failure_type"], axis=1), 100)
    judged = misjudged(truth, 0.8, 0.9)
    rows = sampled(truth, judged).assign(
        judge_failed=pd.array(judged["score"] < 3, dtype="boolean"),
        human_failed=pd.array(truth["score"] < 3, dtype="boolean"),
    )
    table = corrected_rate(judged, rows)
    expected = (truth["score"] < 3).groupby(truth["replicate"]).mean()
    assert table.set_index("replicate")["corrected_rate"].to_dict() == pytest.approx(expected.to_dict())


# ------------------------------------------------------------------------------------------------------- what is not


def rates(value, n=100):
    return pd.DataFrame({"structure": ["flat"], "failure_type": ["cross_domain"], "fr_at_1": [value], "n_entries": [n]})


def test_a_judge_no_better_than_chance_corrects_nothing():
    cells = {(True, True): 10, (False, True): 10, (True, False): 20, (False, False): 20}
    row = corrected_rate(rates(0.5), audited(cells)).iloc[0]
    assert math.isnan(row["corrected_rate"]) and math.isnan(row["corrected_low"])
    assert row["reason"] == "not available: sensitivity + specificity = 1.00, no better than chance"
    assert "nan" not in str(show(corrected_rate(rates(0.5), audited(cells))))


@pytest.mark.parametrize(("rate", "cut", "words"), [(0.02, 0.0, "cut to 0 %"), (0.97, 1.0, "cut to 100 %")])
def test_estimates_beyond_a_rate_are_cut_and_said(rate, cut, words):
    cells = {(True, True): 40, (False, True): 10, (True, False): 10, (False, False): 40}
    row = corrected_rate(rates(rate), audited(cells), pool=True).iloc[0]
    assert row["corrected_rate"] == cut and words in row["remark"]
    assert row["corrected_low"] <= cut <= row["corrected_high"]


def test_a_person_who_fails_nothing_and_a_judge_that_fails_everything():
    passed = audited({(True, False): 5, (False, False): 20})
    row = judge_accuracy(passed).iloc[0]
    assert math.isnan(row["sensitivity"]) and row["specificity"] == pytest.approx(0.8)
    assert row["reason"] == "sensitivity not available: the person failed none of 25 answers"
    assert (
        corrected_rate(rates(0.3), audited({(True, False): 5, (False, False): 20})).iloc[0]["reason"] == row["reason"]
    )
    every = judge_accuracy(audited({(True, False): 5, (True, True): 20})).iloc[0]
    assert (every["sensitivity"], every["specificity"]) == (1, 0) and math.isnan(every["specificity_low"])
    assert every["interval"] == "not available: the judge failed every audited answer"
    empty = audited({(True, True): 3}).assign(human_failed=pd.array([pd.NA] * 3, dtype="boolean"))
    row = judge_accuracy(empty).iloc[0]
    assert math.isnan(row["sensitivity"]) and "none of 0 answers" in row["reason"] and row["n_empty"] == 3


def test_a_table_of_rates_is_corrected_too():
    truth, judged = planted(0.85, 0.9, n=80)
    rows = sampled(truth, judged)
    from_rates = corrected_rate(failure_rate(judged), rows).set_index(["structure", "replicate"])
    from_rows = corrected_rate(judged, rows).set_index(["structure", "replicate"])
    assert from_rates["corrected_rate"].to_dict() == pytest.approx(from_rows["corrected_rate"].to_dict())
    wider = from_rates["corrected_high"] - from_rates["corrected_low"]
    assert (wider >= from_rows["corrected_high"] - from_rows["corrected_low"] - 1e-9).all()


def test_what_is_refused():
    good = audited({(True, True): 5, (False, False): 5})
    for call, words in (
        (lambda: judge_accuracy(good.drop(columns="weight")), "lacks the columns"),
        (lambda: judge_accuracy(good.iloc[:0]), "has no rows"),
        (lambda: judge_accuracy("audited.csv"), "expected the table made by audit_import"),
        (lambda: judge_accuracy(good, by="colour"), "by must be one of"),
        (lambda: judge_accuracy(good.assign(judge_failed=pd.NA)), "echo measure"),
        (lambda: judge_accuracy(good.assign(structure="tree"), by="structure"), "baseline must be one of"),
        (lambda: corrected_rate(planted(0.8, 0.9, n=5)[1], good), "judged none of the results"),
    ):
        with pytest.raises(InputError, match=words):
            call()
