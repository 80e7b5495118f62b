"""Unequal coverage: the rates on all complete entries beside those on the common ones, and orders that reverse."""

from __future__ import annotations

import math

import pytest
from test_stats import arm, echoed, frames, lose, rows

from structmem.columns import empty_results
from structmem.errors import InputError
from structmem.intervals import wilson
from structmem.overlap import on_common_entries
from structmem.stats import failure_rate
from structmem.tables import show

HARD, EASY = [f"hard{i}" for i in range(10)], [f"easy{i}" for i in range(10)]


def simpson(**settings):
    """Fixed is better on hard and on easy entries, and looks worse because it was scored mostly on hard ones."""
    flat = rows({e: [5 if i < 9 else 1] for i, e in enumerate(HARD)} | {e: [5 if i < 3 else 1] for i, e in
                enumerate(EASY)}, **settings)  # fmt: skip
    fixed = rows({e: [5 if i < 8 else 1] for i, e in enumerate(HARD)} | {e: [5 if i < 1 else 1] for i, e in
                 enumerate(EASY)}, structure="fixed", **settings)  # fmt: skip
    return flat, lose(fixed, fixed.index[fixed["entry_id"].isin(EASY[2:])])


def test_simpson_is_shown_and_said():
    results = frames(*simpson())
    table = on_common_entries(results).set_index("structure")
    flat, fixed = table.loc["flat"], table.loc["fixed"]
    assert (flat["failure_rate"], flat["n_entries"], fixed["failure_rate"], fixed["n_entries"]) == (0.6, 20, 0.75, 12)
    # Common: the ten hard ones and two easy ones, which fail under flat (11 of 12); one of them under fixed (9 of 12).
    assert (flat["common_failure_rate"], fixed["common_failure_rate"]) == pytest.approx((11 / 12, 9 / 12))
    assert flat["n_common"] == fixed["n_common"] == 12 and flat["n_arms"] == 2
    assert (flat["change_pp"], fixed["change_pp"]) == pytest.approx((100 * (11 / 12 - 0.6), 0))
    assert (flat["low"], flat["high"]) == wilson(12, 20)
    assert (flat["common_low"], flat["common_high"]) == wilson(11, 12)
    assert (flat["n_unscored"], fixed["n_unscored"]) == (0, 8)
    assert flat["warning"] == (
        "below fixed on all complete entries (60.0 against 75.0 %), above it on the common ones (91.7 against 75.0 %)"
    )
    assert fixed["warning"].startswith("above flat on all complete entries (75.0 against 60.0 %), below it")
    assert "91.7 % [" in (text := str(show(on_common_entries(results)))) and "[1] " in text


def test_equal_coverage_changes_nothing():
    results = frames(arm([1, 0, 1, 0]), arm([0, 0, 1, 0], structure="fixed"), arm([1, 1, 1, 0], model="n"))
    table, rates = on_common_entries(results), failure_rate(results)
    for column in ("failure_rate", "low", "high", "n_entries", "n_unscored"):
        assert table[column].tolist() == rates[column].tolist()
    assert table["common_failure_rate"].tolist() == rates["failure_rate"].tolist()
    assert set(table["change_pp"]) == {0} and set(table["warning"]) == {""} and set(table["reason"]) == {""}
    assert table["n_common"].tolist() == table["n_entries"].tolist()


def test_every_model_has_common_entries_of_its_own_unless_asked_otherwise():
    one = frames(arm([1, 0, 1, 0]), arm([0, 0, 1, 0], structure="fixed"))
    results = frames(one, lose(one.assign(model="n"), [0, 1]))  # flat of n lacks e0 and e1
    table = on_common_entries(results)
    assert table["n_common"].tolist() == [4, 4, 2, 2] and set(table["n_arms"]) == {2}
    across = on_common_entries(results, across_models=True)
    assert across["n_common"].tolist() == [2, 2, 2, 2] and set(across["n_arms"]) == {4}
    assert across["common_failure_rate"].tolist() == [0.5, 0.5, 0.5, 0.5]  # e2 fails and e3 does not, everywhere
    # A model that is asked for is never pooled with another.
    assert on_common_entries(results, by="structure")["n_common"].tolist() == [4, 4, 2, 2]


def test_across_models_the_same_arm_is_compared():
    hard, easy = arm([1, 1, 1, 0, 0, 0, 0, 0]), arm([1, 1, 0, 0, 0, 0, 0, 0], model="n")
    easy = lose(easy, [4, 5, 6, 7])  # n is worse on all its entries (2 of 4 against 3 of 8) and better on the same ones
    flat, other = on_common_entries(frames(hard, easy), across_models=True)["warning"]
    assert flat == (
        "below n, flat on all complete entries (37.5 against 50.0 %), above it on the common ones (75.0 against 50.0 %)"
    )
    assert other.startswith("above m, flat on all")
    assert set(on_common_entries(frames(hard, easy))["warning"]) == {""}


def test_arms_without_a_complete_entry_have_no_say():
    results = frames(arm([1, 0]), lose(arm([0, 0], structure="fixed"), [0, 1]), arm([1, 1], structure="tree"))
    table = on_common_entries(results).set_index("structure")
    assert table["n_common"].to_dict() == {"flat": 2, "fixed": 0, "tree": 2}
    assert math.isnan(table.loc["fixed", "failure_rate"]) and math.isnan(table.loc["fixed", "common_failure_rate"])
    assert table["reason"].to_dict() == {"flat": "", "fixed": "no generation is scored", "tree": ""}


def test_nothing_in_common_is_said():
    results = frames(lose(arm([1, 0]), 0), lose(arm([1, 0], structure="fixed"), 1))
    table = on_common_entries(results)
    assert table["common_failure_rate"].isna().all() and set(table["n_common"]) == {0}
    assert set(table["reason"]) == {"no entry is complete in every arm"} and set(table["warning"]) == {""}


def test_runs_and_subgroups_keep_apart():
    flat = arm([1, 1, 0, 0]).assign(memory_domain=["Work", "Work", "Home", "Home"])
    results = frames(flat, flat.assign(replicate=1, score=1.0), lose(flat.assign(structure="fixed"), [0]))
    table = on_common_entries(results)
    assert table["arm"].tolist() == ["flat", "flat (A/A)", "fixed"] and set(table["n_common"]) == {3}
    within = on_common_entries(results, by=("structure", "memory_domain"))
    assert within.groupby("memory_domain")["n_common"].first().to_dict() == {"Home": 2, "Work": 1}


def test_echo_one_entry_no_rows_and_bad_input():
    echo = on_common_entries(frames(echoed([1, 0], [0.9, 0.1]), echoed([0, 0], [0.1, 0.1], structure="fixed")))
    assert echo["common_echo_rate"].tolist() == [0.5, 0] and "failure_rate" not in echo
    assert on_common_entries(arm([1]))["common_failure_rate"].tolist() == [1.0]
    assert len(on_common_entries(empty_results())) == 0
    with pytest.raises(InputError, match="by must be one of"):
        on_common_entries(arm([1]), by="nothing")
    with pytest.raises(InputError, match="keep one row"):
        on_common_entries(frames(arm([1, 0]), arm([1])))
