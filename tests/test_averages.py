"""Macro and micro averages and their intervals, by hand, by simulation and by resampling entries."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_stats import arm, echoed, frames, lose, rows

import structmem.intervals as iv
from structmem.averaging import averages
from structmem.columns import empty_results
from structmem.errors import InputError
from structmem.stats import failure_rate
from structmem.tables import show


def kinds(*sizes_and_failures):
    """One arm with several domains: (entries, failing ones) each."""
    parts = []
    for number, (size, failing) in enumerate(sizes_and_failures):
        outcomes = [1] * failing + [0] * (size - failing)
        part = arm(outcomes, memory_domain=f"d{number}")
        parts.append(part.assign(entry_id=[f"d{number}-{i}" for i in range(size)]))
    return frames(*parts)


def both(results, over, **options):
    table = averages(results, over, **options)
    return [table[table["average"].str.startswith(name)].iloc[0] for name in ("macro", "micro")]


def test_macro_and_micro_by_hand():
    macro, micro = both(kinds((100, 50), (20, 4), (5, 5)), "memory_domain")
    assert macro["failure_rate"] == pytest.approx((0.5 + 0.2 + 1) / 3)
    assert micro["failure_rate"] == pytest.approx(59 / 125)
    assert macro["average"] == "macro: mean of 3 memory domains"
    assert micro["average"] == "micro: all entries of 3 memory domains"
    for row in (macro, micro):
        assert (row["n_groups"], row["n_entries"], row["n_clusters"], row["n_unscored"]) == (3, 125, 125, 0)
        assert (row["smallest_group"], row["largest_group"], row["unit"]) == (5, 100, "entry")
    assert (macro["interval"], micro["interval"]) == ("stratified Wilson", "Wilson")


def test_each_average_has_its_own_error_bar():
    macro, micro = both(kinds((100, 50), (20, 10), (5, 2)), "memory_domain")
    assert (micro["low"], micro["high"]) == pytest.approx(iv.wilson(62, 125))
    # The group of 5 weighs a third in the macro average, so its uncertainty does: about three times as wide.
    ratio = (macro["high"] - macro["low"]) / (micro["high"] - micro["low"])
    sizes = np.array([100, 20, 5])
    expected = math.sqrt((0.25 / sizes).sum() / 9) / math.sqrt(0.25 / 125)
    assert ratio == pytest.approx(expected, rel=0.15) and ratio > 1.2


def test_the_macro_interval_widens_with_the_smallest_group_not_with_the_largest():
    width = {}
    for name, sizes in {"base": (100, 20, 6), "large": (1000, 20, 6), "small": (100, 20, 60)}.items():
        macro, _ = both(kinds(*[(n, n // 2) for n in sizes]), "memory_domain")
        width[name] = macro["high"] - macro["low"]
    assert width["large"] == pytest.approx(width["base"], rel=0.05) and width["small"] < 0.75 * width["base"]


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 30)), min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_stratified_wilson_contains_the_mean_and_is_wilson_where_it_must_be(groups):
    sizes = [n for n, _ in groups]
    values = np.concatenate([np.arange(n) < min(failing, n) for n, failing in groups]).astype(float)
    group, cluster = np.repeat(np.arange(len(groups)), sizes), np.arange(sum(sizes))
    mean, low, high = iv.mean_of_rates(values, cluster, group)
    assert 0 <= low <= mean + 1e-12 and mean <= high + 1e-12 <= 1 + 2e-12 and low < high
    assert mean == pytest.approx(np.mean([min(f, n) / n for n, f in groups]))
    mirrored = iv.mean_of_rates(1 - values, cluster, group)
    assert mirrored == pytest.approx((1 - mean, 1 - high, 1 - low))
    one = iv.mean_of_rates(values, cluster, np.zeros(len(values)))[1:]
    assert one == pytest.approx(iv.wilson(values.sum(), len(values)))
    # The same entries in every group, with the same outcomes: seven groups hold no more than one.
    again = iv.mean_of_rates(np.tile(values, 7), np.tile(cluster, 7), np.repeat(np.arange(7), len(values)))[1:]
    assert again == pytest.approx(one)


def test_equal_independent_groups_are_one_sample():
    values, group = np.tile([1, 0, 0, 1, 0, 0, 0, 0, 1, 0.0], 4), np.repeat(np.arange(4), 10)
    _, low, high = iv.mean_of_rates(values, np.arange(40), group)
    assert (low, high) == pytest.approx(iv.wilson(12, 40))


def coverage(draw, truth, function, repetitions=500):
    rng = np.random.default_rng(7)
    bounds = np.array([function(*draw(rng)) for _ in range(repetitions)])[:, -2:]
    return np.mean((bounds[:, 0] <= truth) & (truth <= bounds[:, 1]))


@pytest.mark.parametrize("truths", [(0.5, 0.5, 0.5), (0.9, 0.5, 0.1), (0.03, 0.1, 0.2)])
def test_the_macro_interval_covers_and_the_micro_one_would_not(truths):
    sizes = (100, 20, 5)
    group, p = np.repeat(np.arange(3), sizes), np.repeat(truths, sizes)

    def draw(rng):
        return (rng.random(125) < p).astype(float), np.arange(125), group

    def around_macro(values, cluster, group):  # the micro error bar put around the macro average
        low, high = iv.wilson(values.sum(), 125)
        shift = iv.mean_of_rates(values, cluster, group)[0] - values.mean()
        return low + shift, high + shift

    assert 0.925 < coverage(draw, np.mean(truths), iv.mean_of_rates) < 0.985
    assert coverage(draw, np.mean(truths), around_macro, 200) < 0.9


def test_models_share_their_entries():
    n, models = 60, 5

    def draw(rng):
        hard = rng.random(n)  # how hard an entry is, for every model
        values = rng.random((models, n)) < 0.1 + 0.8 * hard**2
        return values.ravel().astype(float), np.tile(np.arange(n), models), np.repeat(np.arange(models), n)

    truth = 0.1 + 0.8 / 3
    assert 0.93 < coverage(draw, truth, iv.mean_of_rates) < 0.97

    def as_if_independent(values, cluster, group):
        return iv.mean_of_rates(values, np.arange(len(values)), group)

    assert coverage(draw, truth, as_if_independent, 200) < 0.9


def test_the_interval_over_models_is_that_of_resampled_entries():
    rng = np.random.default_rng(2)
    outcomes = rng.random((3, 80)) < 0.2 + 0.6 * rng.random(80) ** 2
    results = frames(*(arm(row, model=f"m{i}") for i, row in enumerate(outcomes)))
    macro, micro = both(results, "model")
    assert macro["average"] == "macro: mean of 3 models" and macro["n_clusters"] == 80 and macro["n_entries"] == 240
    assert "model" not in macro.index and macro["interval"] == "stratified Wilson, entries as clusters"
    drawn = [outcomes[:, rng.integers(0, 80, 80)].mean() for _ in range(4000)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    for row in (macro, micro):
        assert row["failure_rate"] == pytest.approx(outcomes.mean())
        assert (row["low"], row["high"]) == pytest.approx((low, high), abs=0.01)
    pooled = failure_rate(results, "structure").iloc[0]
    assert (micro["low"], micro["high"]) == (pooled["low"], pooled["high"])


def test_incomplete_entries_and_empty_groups_are_in_no_mean():
    results = frames(arm([1, 0, 0, 0]), arm([1, 1], model="n"), lose(arm([1, 1, 1], model="o"), [0, 1, 2]))
    macro, micro = both(lose(results, 1), "model")
    assert macro["failure_rate"] == pytest.approx((1 / 3 + 1) / 2) and micro["failure_rate"] == pytest.approx(3 / 5)
    assert macro["n_groups"] == 2 and macro["n_unscored"] == 4
    assert macro["remark"] == "1 of 3 models without complete entries, in no mean"
    nothing, _ = both(lose(arm([1, 0]), [0, 1]), "model")
    assert math.isnan(nothing["failure_rate"]) and math.isnan(nothing["low"])
    assert nothing["reason"] == "no entry has all its generations scored" and nothing["n_groups"] == 0
    assert len(averages(empty_results())) == 0


def test_an_average_over_failure_types_says_what_it_means():
    leak = rows({"a": [1, 5, 1], "b": [1, 1, 1]})
    good = rows({"a": [3], "b": [1], "c": [2]}, failure_type="beneficial_memory_usage")
    macro, micro = both(frames(leak, good), "failure_type")
    assert macro["failure_rate"] == pytest.approx((1 / 2 + 2 / 3) / 2) and micro["failure_rate"] == 3 / 5
    # Entries of two failure types are not the same entry, whatever they are called.
    assert macro["n_clusters"] == macro["n_entries"] == 5
    assert macro["note"] == (
        "cross_domain: highest score ≥ 3 (K 3), beneficial_memory_usage: score < 3 (K 1); the scales run in opposite "
        "directions, the rates do not"
    )
    assert "[1] cross_domain: highest score ≥ 3 (K 3)" in str(show(averages(frames(leak, good), "failure_type")))


def test_settings_and_runs_are_not_averaged_over_in_silence():
    results = frames(arm([1, 1]), arm([0, 1], replicate=1), arm([0, 0], model="n"), arm([0, 0], renderer="xml"))
    table = averages(results, "model")
    assert {"renderer", "replicate"} <= set(table) and len(table) == 6
    assert table["arm"].tolist() == ["flat", "flat", "flat (A/A)", "flat (A/A)", "flat", "flat"]
    by_renderer = averages(results, "renderer")
    assert set(by_renderer["average"]) == {
        "macro: mean of 2 renderers", "macro: mean of 1 renderer", "micro: all entries of 2 renderers",
        "micro: all entries of 1 renderer",
    }  # fmt: skip
    sorted_by = frames(
        arm([1, 1], structure="fixed", structurer="embedding"),
        arm([0], structure="fixed", structurer="x", failure_type="sycophancy"),
    )
    assert averages(sorted_by, "failure_type")["n_groups"].tolist() == [1] * 4
    with pytest.raises(InputError, match="generations per entry"):
        averages(frames(arm([1, 0]), rows({"e0": [1, 1]}, model="n")), "model")
    with pytest.raises(InputError, match=r"over must be one of \['defence', 'failure_type', 'model'.*got 'structure'"):
        averages(results, "structure")
    with pytest.raises(InputError, match="over must be one of .*got 'mode'"):
        averages(results, "mode")


def test_entries_without_a_label_are_a_group_that_is_said():
    results = arm([1, 0, 0, 0]).assign(memory_domain=["Work", "Work", None, None])
    macro, _ = both(results, "memory_domain")
    assert macro["failure_rate"] == 0.25 and macro["remark"] == "entries without a label are the group (none)"


def test_echo_is_averaged_under_its_own_name():
    results = frames(echoed([1, 0], [0.9, 0.1]), echoed([1, 1], [0.9, 0.9], model="n"))
    macro, micro = both(results, "model")
    assert macro["echo_rate"] == micro["echo_rate"] == 0.75 and "failure_rate" not in macro.index
    assert macro["note"] == "echo: at least one generation repeats a memory"
