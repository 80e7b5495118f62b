"""FR@k, threshold sensitivity and score distributions, against enumeration and the other tables."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_stats import arm, echoed, frames, lose, rows

from structmem.columns import empty_results
from structmem.curves import fr_at_k, score_distribution, threshold_sensitivity
from structmem.errors import InputError
from structmem.intervals import wilson
from structmem.stats import echo_rate, failure_rate, paired_differences
from structmem.tables import show

GOOD = {"failure_type": "own", "high_is_bad": False, "scale_low": 1, "scale_high": 3, "threshold": 3}


def enumerated(scores, k, high_is_bad=True, threshold=3):
    """Share of failing entries, averaged over every choice of k of their generations."""
    fails = [  # the benchmark takes the highest score in both directions
        [(max(chosen) >= threshold) == high_is_bad for chosen in itertools.combinations(values, k)]
        for values in scores.values()
    ]
    return float(np.mean([np.mean(one) for one in fails]))


def test_every_k_by_hand():
    results = rows({"a": [1, 2, 3], "b": [1, 1, 1], "c": [5, 5, 1], "d": [2, None, 5]})
    table = fr_at_k(results)
    assert table["k"].tolist() == [1, 2, 3]
    # a fails with one of three, c with two of three; d is incomplete.
    assert table["fr_at_k"].tolist() == pytest.approx([(1 + 0 + 2) / 9, (2 / 3 + 0 + 1) / 3, 2 / 3])
    assert set(table["n_entries"]) == {3} and set(table["n_unscored"]) == {1} and set(table["n_generations"]) == {3}
    assert table["interval"].tolist() == ["Wilson, entries as clusters"] * 2 + ["Wilson"]
    assert "FR@k" in str(show(table))


@given(st.lists(st.lists(st.integers(1, 5), min_size=4, max_size=4), min_size=1, max_size=6), st.booleans())
@settings(max_examples=12, deadline=None)
def test_every_k_is_the_mean_over_every_choice_of_generations(values, high_is_bad):
    scores = {f"e{i}": one for i, one in enumerate(values)}
    own = {"failure_type": "own", "high_is_bad": high_is_bad, "scale_low": 1, "scale_high": 5}
    table = fr_at_k(rows(scores, **own))
    assert table["fr_at_k"].tolist() == pytest.approx([enumerated(scores, k, high_is_bad) for k in (1, 2, 3, 4)])
    steps = np.diff(table["fr_at_k"])
    assert (steps >= -1e-12).all() if high_is_bad else (steps <= 1e-12).all()
    assert ((table["low"] <= table["fr_at_k"] + 1e-12) & (table["fr_at_k"] <= table["high"] + 1e-12)).all()


def test_the_ends_of_the_curve_are_the_rates_of_the_main_table_with_their_intervals():
    rng = np.random.default_rng(3)
    scores = {f"e{i}": list(row) for i, row in enumerate(rng.integers(1, 6, size=(30, 3)))}
    good = rows({entry: [min(score, 3) for score in values] for entry, values in scores.items()}, **GOOD)
    results = frames(
        rows(scores), rows({entry: values[::2] + values[:1] for entry, values in scores.items()}, model="n")
    )
    results = frames(results, good)
    for by in (("model", "structure"), "structure"):
        curve, rates = fr_at_k(results, by), failure_rate(results, by)
        for k, columns in ((1, ["fr_at_1", "fr_at_1_low", "fr_at_1_high"]), (3, ["failure_rate", "low", "high"])):
            found = curve[curve["k"] == k][["fr_at_k", "low", "high"]].to_numpy()
            assert found == pytest.approx(rates[columns].to_numpy())


def test_generations_are_not_drawn_with_replacement():
    # One of three generations fails in every entry: the maximum of three finds it always, of three drawn with
    # replacement only in 1 − (2/3)³ = 70 % of entries.
    table = fr_at_k(rows({f"e{i}": [5, 1, 1] for i in range(4)}))
    assert table["fr_at_k"].tolist() == pytest.approx([1 / 3, 2 / 3, 1])
    # Entries do not vary, so that the interval counts what was made: 12 generations, 6 separate pairs, 4 triples.
    bounds = list(table[["low", "high"]].itertuples(index=False, name=None))
    assert bounds[:2] == [pytest.approx(wilson(4, 12)), pytest.approx(wilson(4, 6))] and bounds[2] == wilson(4, 4)


def test_the_curve_estimates_what_fewer_generations_would_have_shown():
    rng = np.random.default_rng(8)
    scores = 1 + rng.binomial(4, rng.beta(1, 3, size=(4000, 1)), size=(4000, 6))
    frame = fr_at_k(rows({f"e{i:04d}": list(row) for i, row in enumerate(scores[:, :4])}))
    two_others = np.mean(scores[:, 4:].max(axis=1) >= 3)  # generations that the curve has not seen
    row = frame[frame["k"] == 2].iloc[0]
    assert row["fr_at_k"] == pytest.approx(two_others, abs=0.02) and row["low"] < two_others < row["high"]


def test_echo_has_a_curve_under_its_own_name():
    flags, overlaps = [1, 0, 1, 0], [0.9, 0.1, 0.5, 0.1]
    results = frames(echoed(flags, overlaps), echoed([0, 0, 1, 0], overlaps).assign(generation=1))
    table = fr_at_k(results)
    assert table["echo_at_k"].tolist() == pytest.approx([3 / 8, 1 / 2]) and "fr_at_k" not in table
    assert table["echo_at_k"].iloc[-1] == echo_rate(results)["echo_rate"].item()
    with pytest.raises(InputError, match="use echo_rate"):
        fr_at_k(results, outcome="failure")


def test_curves_of_nothing_say_why():
    row = fr_at_k(rows({"a": [None], "b": [None]})).iloc[0]
    assert math.isnan(row["fr_at_k"]) and math.isnan(row["low"]) and row["reason"] == "no generation is scored"
    assert len(fr_at_k(empty_results())) == len(score_distribution(empty_results())) == 0
    assert len(threshold_sensitivity(empty_results())) == 0
    with pytest.raises(InputError, match="by must be one of"):
        fr_at_k(arm([1]), by="nothing")
    with pytest.raises(InputError, match="generations per entry"):
        fr_at_k(frames(arm([1, 0]), rows({"e0": [1, 1], "e1": [2, 4]}, model="n")), by="structure")


# ------------------------------------------------------------------------------------------------------- thresholds


@pytest.fixture(scope="module")
def study():
    rng = np.random.default_rng(11)
    parts = []
    for model, structure, replicate in [("m", "flat", 0), ("m", "flat", 1), ("m", "fixed", 0), ("n", "flat", 0)]:
        scores = {f"e{i}": list(row) for i, row in enumerate(rng.integers(1, 6, size=(25, 2)))}
        scores["e3"][0] = None
        parts.append(rows(scores, model=model, structure=structure, replicate=replicate))
        scores = {f"b{i}": [value] for i, value in enumerate(rng.integers(1, 4, size=12))}
        parts.append(rows(scores, model=model, structure=structure, replicate=replicate,
                          failure_type="beneficial_memory_usage"))  # fmt: skip
    return frames(*parts)


def test_sensitivity_agrees_with_the_other_tables_at_every_threshold(study):
    table = threshold_sensitivity(study)
    assert sorted(table["threshold"][table["failure_type"] == "cross_domain"].unique()) == [2, 3, 4, 5]
    assert sorted(table["threshold"][table["failure_type"] == "beneficial_memory_usage"].unique()) == [2, 3]
    assert len(table) == 4 * (4 + 2) and table["is_stamped"].sum() == 4 * 2
    assert set(table["threshold"][table["is_stamped"]]) == {3}
    for (kind, threshold), part in table.groupby(["failure_type", "threshold"]):
        here = study[study["failure_type"] == kind]
        rates = failure_rate(here, threshold=threshold)
        keys = ["model", "structure", "replicate"]
        both = part.merge(rates, on=keys, suffixes=("", "_main"))
        assert len(both) == len(rates) == len(part)
        for column in ("failure_rate", "low", "high", "n_entries", "n_unscored", "n_generations"):
            assert both[column].tolist() == pytest.approx(both[f"{column}_main"].tolist())
        pairs = paired_differences(here.assign(threshold=threshold))
        both = part.merge(pairs, on=keys, suffixes=("", "_main"))
        assert len(both) == len(pairs) == 2
        for column in ("n_pairs", "difference_pp", "low_pp", "high_pp", "mcnemar_p"):
            assert both[column].tolist() == pytest.approx(both[f"{column}_main"].tolist())
        assert both["arm"].tolist() == both["arm_main"].tolist()
    itself = table[(table["structure"] == "flat") & (table["replicate"] == 0)]
    assert set(itself["remark"]) == {"the baseline itself"} and itself["difference_pp"].isna().all()


def test_a_sign_that_hangs_on_the_threshold_is_remarked():
    flat, fixed = rows({"a": [4], "b": [2], "c": [2]}), rows({"a": [1], "b": [3], "c": [3]}, structure="fixed")
    table = threshold_sensitivity(frames(flat, fixed)).query("structure == 'fixed'").set_index("threshold")
    assert table["difference_pp"].to_dict() == pytest.approx({2: -100 / 3, 3: 100 / 3, 4: -100 / 3, 5: 0})
    other = "the other sign than at the stamped threshold"
    assert table["remark"].to_dict() == {2: other, 3: "", 4: other, 5: "no discordant pairs"}
    assert table["stamped_threshold"].eq(3).all() and table["analysis"].eq("exploratory").all()
    assert table["analysis_note"][4] == "another threshold than the results' own" != table["analysis_note"][3]


def test_arms_stamped_with_other_thresholds_meet_at_the_same_one():
    results = frames(arm([1, 1, 0]), arm([1, 0, 0], structure="fixed", threshold=4))
    table = threshold_sensitivity(results).query("structure == 'fixed'")
    assert table["difference_pp"].tolist() == pytest.approx([-100 / 3] * 4)
    assert table["threshold"][table["is_stamped"]].tolist() == [4]


def test_a_failure_type_without_the_baseline_keeps_its_rates():
    lone = arm([1, 0], structure="fixed", failure_type="sycophancy")
    table = threshold_sensitivity(frames(arm([1, 0]), arm([0, 0], structure="fixed"), lone))
    mine = table[table["failure_type"] == "sycophancy"]
    assert set(mine["remark"]) == {"no baseline under the same settings"} and set(mine["failure_rate"]) == {0.5}
    with pytest.raises(InputError, match="baseline must be one of"):
        threshold_sensitivity(lone)


def test_thresholds_need_a_scale():
    own = {key: value for key, value in GOOD.items() if not key.startswith("scale")}
    with pytest.raises(InputError, match="scale of failure type 'own' is not known"):
        threshold_sensitivity(arm([1, 0], **own).assign(score=[1.0, 2.0]))
    table = threshold_sensitivity(arm([1, 0], **GOOD).assign(score=[1.0, 3.0]))
    assert table["threshold"].tolist() == [2, 3] and table["failure_rate"].tolist() == [0.5, 0.5]
    with pytest.raises(InputError, match="one echo_threshold"):
        threshold_sensitivity(echoed([1], [0.9]))
    with pytest.raises(InputError, match="keep one row"):
        threshold_sensitivity(frames(arm([1, 0]), arm([1])))


# ------------------------------------------------------------------------------------------------------------ scores


def test_a_distribution_by_hand():
    table = score_distribution(rows({"a": [1, 2], "b": [1, 1], "c": [5, None]}))
    assert table["score"].tolist() == [1, 2, 3, 4, 5]
    assert table["share"].tolist() == [0.75, 0.25, 0, 0, 0] and table["n_with_score"].tolist() == [3, 1, 0, 0, 0]
    assert set(table["n_entries"]) == {2} and set(table["n_unscored"]) == {1}
    # Two clusters of two: shares 1/2 and 1, the variance 2 · (1/4² + 1/4²) / 4 · 4 / 4 = 1/16, and
    # (3/4 · 1/4 / 3) · 4 / (1/16) = 4 trials.
    assert tuple(table.loc[0, ["low", "high"]]) == pytest.approx(wilson(3, 4))
    assert tuple(table.loc[4, ["low", "high"]]) == wilson(0, 2)


def test_distributions_have_the_mean_and_the_tail_of_the_main_table(study):
    for by in (("model", "structure"), "structure", ("structure", "generation")):
        table = score_distribution(study, by)
        keys = [key for key in failure_rate(study, by) if key in table and key in (
            "model", "structure", "replicate", "generation", "failure_type")]  # fmt: skip
        rates = failure_rate(study, by).set_index(keys)
        groups = {key: part for key, part in table.groupby(keys)}
        assert len(groups) == len(rates)
        for key, part in groups.items():
            row = rates.loc[key]
            assert part["share"].sum() == pytest.approx(1)
            assert part["n_with_score"].sum() == row["n_entries"] * row["n_generations"]
            assert (part["score"] * part["share"]).sum() == pytest.approx(row["mean_score"])
            bad = part["score"] >= 3 if "cross_domain" in key else part["score"] < 3
            assert part["share"][bad].sum() == pytest.approx(row["fr_at_1"])


def test_a_distribution_without_complete_entries_is_missing():
    table = score_distribution(lose(arm([1, 0]), [0, 1]))
    assert table["share"].isna().all() and set(table["reason"]) == {"no generation is scored"}
    with pytest.raises(InputError, match="use echo_rate"):
        score_distribution(echoed([1], [0.9]))
