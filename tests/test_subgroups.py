"""Subgroup differences against hand-worked tables, the paired table, enumeration and simulation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats as scipy_stats
from test_stats import arm, echoed, frames, lose, rows

from structmem.columns import empty_results
from structmem.comparisons import paired_differences
from structmem.errors import InputError
from structmem.planted import simulated_scores
from structmem.subgroups import _differ, subgroup_differences
from structmem.tables import show

FLAT, FIXED = [1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 0, 1], [0, 0, 1, 0, 0, 0, 0, 1, 1, 1, 1, 0]


def labelled(table, **labels):
    entries = sorted(table["entry_id"].unique(), key=lambda entry: int(entry[1:]))
    new = {name: table["entry_id"].map(dict(zip(entries, values, strict=True))) for name, values in labels.items()}
    return table.assign(**new)


@pytest.fixture
def study():
    domains = ["Health"] * 5 + ["Work"] * 7
    results = frames(arm(FLAT), arm(FIXED, structure="fixed"), arm(FLAT[::-1], structure="tree"))
    return labelled(results, memory_domain=domains, n_memories=[4, 4, 5, 6, 6, 7, 9, 9, 10, 12, 12, 12])


def test_subgroups_agree_with_the_paired_table(study):
    table = subgroup_differences(study, "memory_domain", resamples=99)
    pairs = paired_differences(study, by=("model", "memory_domain"))
    both = table.merge(pairs, left_on=["arm", "subgroup"], right_on=["arm", "memory_domain"], suffixes=("", "_paired"))
    assert len(both) == len(pairs) == len(table) == 4
    for column in ("difference_pp", "low_pp", "high_pp", "rate_baseline", "rate_arm", "mcnemar_p", "n_pairs",
                   "n_only_baseline_fails", "n_only_arm_fails"):  # fmt: skip
        assert both[column].tolist() == pytest.approx(both[f"{column}_paired"].tolist())
    assert table["subgroup"].tolist() == ["Health", "Work"] * 2 and set(table["subgroups_by"]) == {"memory_domain"}
    assert set(table["interval"]) == {"Tango, paired entries"} and set(table["unit"]) == {"entry"}
    assert table["t_p"].isna().all() and set(table["analysis"]) == {"exploratory"}
    assert set(table["remark"]) == {"fewer than 10 entries"}


def test_false_discovery_rates_count_every_row(study):
    table = subgroup_differences(study, "memory_domain", resamples=99)
    assert table["bh_p"].tolist() == pytest.approx(scipy_stats.false_discovery_control(table["mcnemar_p"]))
    assert set(table["n_family"]) == {4} and set(table["family"]) == {"exploratory"}


def test_numbers_are_cut_at_quantiles_and_named_by_what_is_inside(study):
    table = subgroup_differences(study, resamples=99)
    assert table["subgroup"].tolist() == ["4–6", "7–9", "10–12"] * 2 and set(table["subgroups_by"]) == {"n_memories"}
    assert table["n_entries"].tolist() == [5, 3, 4] * 2
    halves = subgroup_differences(study, bins=2, resamples=99)
    assert halves["subgroup"].tolist() == ["4–7", "9–12"] * 2
    few = subgroup_differences(study.assign(n_memories=study["n_memories"] // 5), resamples=99)
    assert few["subgroup"].tolist() == ["0", "1", "2"] * 2  # no more values than bins: each is a subgroup
    missing = study.assign(n_memories=study["n_memories"].where(study["n_memories"] < 10).astype("Int64"))
    assert subgroup_differences(missing, resamples=99)["subgroup"].tolist()[-1] == "(none)"


def test_pairs_of_domains_make_one_label(study):
    queries = ["Work"] * 4 + ["Home"] * 7 + [None]
    results = labelled(study, query_domain=queries)
    table = subgroup_differences(results, ("memory_domain", "query_domain"), resamples=99).query("arm == 'fixed'")
    found = dict(zip(table["subgroup"], table["n_entries"], strict=True))
    assert found == {"Health → Home": 1, "Health → Work": 4, "Work → Home": 6, "Work → (none)": 1}
    assert list(found) == ["Health → Home", "Health → Work", "Work → Home", "Work → (none)"]
    bare = study.assign(memory_domain="", query_domain=None)
    alone = subgroup_differences(bare, ("memory_domain", "query_domain"), resamples=99)
    assert set(alone["subgroup"]) == {"(none)"} and alone["subgroups_differ_p"].isna().all()
    assert set(alone["test"]) == {"not available: 1 subgroup with entries"}


def test_the_permutation_test_agrees_with_enumeration():
    samples = [np.array([1.0, 0.0, 1.0, 0.5]), np.array([-1.0, 0.0]), np.array([0.0, -0.5, -1.0])]
    values, labels = np.concatenate(samples), np.repeat([0, 1, 2], [4, 2, 3])

    def spread(labels):
        groups = [values[labels == one] for one in range(3)]
        return sum(len(group) * (group.mean() - values.mean()) ** 2 for group in groups)

    found = []
    for first in itertools.combinations(range(9), 4):
        rest = [place for place in range(9) if place not in first]
        for second in itertools.combinations(rest, 2):
            moved = np.full(9, 2)
            moved[list(first)], moved[list(second)] = 0, 1
            found.append(spread(moved))
    exact = np.mean(np.array(found) >= spread(labels) - 1e-9)
    p, test = _differ(samples, 20_000, np.random.default_rng(1))
    assert len(found) == 1260 and p == pytest.approx(exact, abs=4 * math.sqrt(exact / 20_000))
    assert test == "permutation of subgroups over entries, 20000 drawn"
    assert _differ([np.zeros(3), np.zeros(1)], 99, np.random.default_rng(1))[0] == 1
    assert _differ([np.array([1.0]), np.zeros(60)], 1999, np.random.default_rng(1))[0] == pytest.approx(
        1 / 61, abs=0.01
    )


def test_the_permutation_test_keeps_its_level_and_finds_a_difference():
    rng = np.random.default_rng(4)
    sizes = (50, 20, 10)

    def p_value(means):
        samples = [rng.choice([-1.0, 0.0, 1.0], size=n, p=[0.2 - m / 2, 0.6, 0.2 + m / 2]) for n, m in
                   zip(sizes, means, strict=True)]  # fmt: skip
        return _differ(samples, 199, rng)[0]

    null = np.mean([p_value((-0.1, -0.1, -0.1)) <= 0.05 for _ in range(600)])
    assert null < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 600)
    assert np.mean([p_value((0.3, -0.3, 0)) <= 0.05 for _ in range(100)]) > 0.8


def test_a_planted_difference_between_subgroups_is_found_through_the_table():
    rng = np.random.default_rng(6)
    flat = (rng.random(120) < 0.7).astype(int)
    helped = np.arange(120) < 60  # only the first half gains
    fixed = np.where(helped & (rng.random(120) < 0.7), 0, flat)
    results = labelled(frames(arm(flat), arm(fixed, structure="fixed")), n_memories=list(range(120)))
    first, second = subgroup_differences(results, bins=2).to_dict("records")
    assert first["difference_pp"] < -30 and second["difference_pp"] == 0
    assert first["subgroups_differ_p"] == second["subgroups_differ_p"] == 1 / 10_000
    assert (second["remark"], second["mcnemar_p"], first["remark"]) == ("no discordant pairs", 1, "")
    again = subgroup_differences(results, bins=2)
    pd.testing.assert_frame_equal(again, subgroup_differences(results.sample(frac=1, random_state=1), bins=2))


def test_runs_and_models_are_means_of_entries():
    labels = {"memory_domain": ["a"] * 6 + ["b"] * 6}
    runs = [arm(FLAT), arm(FIXED, structure="fixed"), arm(FIXED[::-1], structure="fixed", replicate=1)]
    one = labelled(frames(*runs), **labels)
    table = subgroup_differences(one, "memory_domain", resamples=99)
    apart = np.mean([np.subtract(FIXED, FLAT), np.subtract(FIXED[::-1], FLAT)], axis=0)
    for row, values in zip(table.to_dict("records"), (apart[:6], apart[6:]), strict=True):
        expected = scipy_stats.ttest_1samp(values, 0)
        assert row["difference_pp"] == pytest.approx(100 * values.mean())
        assert (row["low_pp"], row["high_pp"]) == pytest.approx([100 * x for x in expected.confidence_interval()])
        assert row["t_p"] == pytest.approx(expected.pvalue) and math.isnan(row["mcnemar_p"])
        assert (row["n_entries"], row["n_pairs"], row["n_runs"], row["n_models"]) == (6, 12, 2, 1)
        assert row["interval"] == "t over entries"
    assert table["bh_p"].tolist() == pytest.approx(scipy_stats.false_discovery_control(table["t_p"]))
    other = labelled(frames(arm(FLAT, model="n"), arm(FLAT, model="n", structure="fixed")), **labels)
    over = subgroup_differences(frames(one, other), "memory_domain", resamples=99)
    assert over["model"].tolist() == ["m", "m", "n", "n", "all models", "all models"]
    # An entry's mean over three pairs, of which the third does not change.
    assert over["difference_pp"].tolist()[4:] == pytest.approx([100 * v.mean() * 2 / 3 for v in (apart[:6], apart[6:])])
    assert over["n_models"].tolist() == [1, 1, 1, 1, 2, 2] and set(over["estimand"]) == {"these models, new entries"}


def test_what_cannot_be_said_is_said():
    labels = {"memory_domain": ["a", "b", "b"]}
    runs = [arm([1, 1, 0]), arm([0, 1, 0], structure="fixed"), arm([0, 1, 0], structure="fixed", replicate=1)]
    one, same = subgroup_differences(labelled(frames(*runs), **labels), "memory_domain", resamples=99).to_dict(
        "records"
    )
    assert one["interval"] == "not available: one entry" and same["interval"] == "not available: no variation"
    assert math.isnan(one["low_pp"]) and math.isnan(one["bh_p"]) and one["difference_pp"] == -100
    lost = lose(labelled(frames(*runs[:2]), **labels), [3])
    gone, kept = subgroup_differences(lost, "memory_domain", resamples=99).to_dict("records")
    assert (gone["n_entries"], gone["n_left_out"], gone["interval"]) == (0, 1, "not available: no pairs")
    assert (kept["n_entries"], kept["n_left_out"]) == (2, 0)
    assert math.isnan(gone["difference_pp"]) and math.isnan(gone["mcnemar_p"])
    text = str(show(subgroup_differences(lost, "memory_domain", resamples=99)))
    assert "nan" not in text and "no pairs" in text
    lone = arm([1, 0, 1], structure="flat", renderer="xml")
    table = subgroup_differences(labelled(frames(*runs[:2], lone), **labels), "memory_domain", resamples=99)
    assert len(table) == 2


def test_an_arm_has_the_same_p_whatever_other_arms_there_are():
    results = simulated_scores(
        pd.DataFrame({"model": "m", "structure": ["flat", "fixed", "dynamic"], "failure_rate": [0.6, 0.5, 0.3]}), 40
    )
    whole = subgroup_differences(results, "n_memories", resamples=199)
    alone = subgroup_differences(results[results["structure"] != "fixed"], "n_memories", resamples=199)
    found = [table.loc[table["arm"] == "dynamic", "subgroups_differ_p"].tolist() for table in (whole, alone)]
    assert found[0] == found[1] and len(found[0]) == 3


def test_echo_no_rows_and_bad_input(study):
    flags = [0.9, 0.1, 0.9, 0.9]
    echo = frames(echoed([1, 0, 1, 1], flags), echoed([0, 0, 1, 1], flags, structure="fixed"))
    table = subgroup_differences(labelled(echo, memory_domain=list("aabb")), "memory_domain", resamples=99)
    assert table["n_only_baseline_echoes"].tolist() == [1, 0] and table["difference_pp"].tolist() == [-50, 0]
    assert len(subgroup_differences(empty_results())) == 0
    assert len(subgroup_differences(study[study["structure"] == "flat"])) == 0  # nothing to compare with the baseline
    with pytest.raises(InputError, match="by must be one of"):
        subgroup_differences(study, "nothing")
    with pytest.raises(InputError, match="by must label entries; 'score' differs between the rows of"):
        subgroup_differences(study, "score")
    with pytest.raises(InputError, match="at least 2 bins"):
        subgroup_differences(study, bins=1)
    with pytest.raises(InputError, match="baseline must be one of"):
        subgroup_differences(study, baseline="rag")
    with pytest.raises(InputError, match="keep one row"):
        subgroup_differences(frames(study, study.iloc[:1]))
    single = frames(rows({"e0": [5]}), rows({"e0": [1]}, structure="fixed"))
    assert subgroup_differences(labelled(single, n_memories=[3]))["difference_pp"].tolist() == [-100]
