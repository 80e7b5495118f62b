"""The noise floor from the A/A arm, against hand-worked tables, enumeration and simulation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_stats import arm, frames, rows

from structmem.errors import InputError
from structmem.intervals import minimum_detectable_pp
from structmem.noise import noise_floor, noise_range_pp
from structmem.planted import simulated_scores
from structmem.stats import paired_differences


def flip(outcomes, *positions):
    return [1 - bad if i in positions else bad for i, bad in enumerate(outcomes)]


FLAT = [1] * 20 + [0] * 20
# 3 of 40 entries come out worse and 1 better: discordance 10 %, difference + 5 pp.
AGAIN = flip(FLAT, 0, 20, 21, 22)
RESULTS = frames(
    arm(FLAT), arm(AGAIN, replicate=1),
    arm(flip(FLAT, *range(12)), structure="dynamic"), arm(flip(FLAT, 0, 1, 30), structure="tree"),
)  # fmt: skip


@pytest.mark.parametrize(("n", "share"), [(5, 0.3), (7, 0.9), (4, 1.0), (6, 0.05)])
def test_the_range_holds_the_chances_of_every_pattern(n, share):
    chance = {-1: share / 2, 0: 1 - share, 1: share / 2}
    sums: dict[int, float] = {}
    for pattern in itertools.product(chance, repeat=n):
        sums[abs(sum(pattern))] = sums.get(abs(sum(pattern)), 0.0) + math.prod(chance[step] for step in pattern)
    expected = next(r for r in range(n + 1) if sum(p for size, p in sums.items() if size <= r) >= 0.95 - 1e-12)
    assert noise_range_pp(n, share) == pytest.approx(100 * expected / n)


@given(st.integers(1, 500), st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_the_range_is_a_share_of_entries_and_near_the_normal_one(n, share):
    found = noise_range_pp(n, share)
    assert 0 <= found <= 100 and found * n / 100 == pytest.approx(round(found * n / 100), abs=1e-6)
    assert found == pytest.approx(196 * math.sqrt(share / n), abs=150 / n)


def test_noise_is_what_two_runs_of_the_baseline_show():
    table = noise_floor(RESULTS)
    assert table["arm"].tolist() == ["flat (A/A)", "dynamic", "tree"]
    again, dynamic, tree = table.to_dict("records")
    assert (again["difference_pp"], again["discordant_share"]) == pytest.approx((5, 0.1))
    assert table["noise_discordant_share"].tolist() == [0.1] * 3 and table["noise_n_entries"].tolist() == [40] * 3
    assert dynamic["noise_sd_pp"] == pytest.approx(100 * math.sqrt(0.1 / 40))
    assert dynamic["noise_range_pp"] == noise_range_pp(40, 0.1) == 10
    assert table["exceeds_noise"].tolist() == [False, True, False]
    assert dynamic["reading"] == "exceeds the ±10.0 pp that repetition alone gives in 95 % of runs"
    assert tree["reading"] == "within the ±10.0 pp that repetition alone gives in 95 % of runs"
    assert again["reading"].startswith("noise: flat again differs from itself on 10.0 % of entries; within")
    assert dynamic["detectable_pp"] == minimum_detectable_pp(40, 12 / 40)
    expected = paired_differences(RESULTS)
    for column in ("difference_pp", "low_pp", "high_pp"):
        assert table[column].tolist() == expected[column].tolist()
    assert set(table["interval"]) == {"Tango, paired entries"}


def test_without_a_repetition_it_says_so():
    table = noise_floor(RESULTS.query("replicate == 0"))
    assert set(table["reading"]) == {"not available: no second run of the baseline (A/A arm) under these settings"}
    assert table["exceeds_noise"].isna().all() and (table["noise_n_entries"] == 0).all()


def test_runs_that_agree_in_every_entry_do_not_make_every_difference_exceed_noise():
    table = noise_floor(frames(arm([1, 0, 0, 1]), arm([1, 0, 0, 1], replicate=1), arm([1, 0, 0, 0], structure="tree")))
    assert not table["exceeds_noise"].any()
    assert table["noise_discordant_share"].tolist() == pytest.approx([1 - 0.05**0.25] * 2)
    assert "agree in all 4 pairs" in table["remark"].iloc[1]


def test_drift_between_the_runs_is_named():
    results = frames(arm(FLAT), arm(flip(FLAT, *range(20, 32)), replicate=1), arm(FLAT, structure="tree"))
    again, tree = noise_floor(results).to_dict("records")
    assert again["exceeds_noise"] and not tree["exceeds_noise"]
    assert "the A/A runs drifted apart by 30.0 pp" in tree["remark"] and "drifted" not in again["remark"]


def test_noise_is_per_model_and_setting():
    results = frames(
        RESULTS, RESULTS.assign(model="quiet", score=RESULTS["score"].where(RESULTS["replicate"] == 0, [5, 1] * 80)),
        RESULTS.query("replicate == 0").assign(defence="restrictive"),
    )  # fmt: skip
    table = noise_floor(results)
    shares = table.groupby(["model", "defence"])["noise_discordant_share"].first()
    assert shares["m", "standard"] == 0.1 and shares["quiet", "standard"] != 0.1
    assert table.query("defence == 'restrictive'")["reading"].str.startswith("not available").all()


def test_repetitions_stay_within_the_range_as_often_as_said():
    rates = pd.DataFrame({"model": [f"m{i}" for i in range(40)], "structure": "flat", "failure_rate": 0.5})
    table = noise_floor(simulated_scores(rates, 80, seed=6))
    assert len(table) == 40 and table["exceeds_noise"].sum() <= 6  # binomial (40, .05): beyond 6 once in 300
    # The standard deviation of the differences that were seen is the one that the discordance gives.
    assert np.sqrt((table["difference_pp"] ** 2).mean()) == pytest.approx(table["noise_sd_pp"].mean(), rel=0.25)


def test_what_is_missing_or_echoed():
    lost = frames(RESULTS.query("structure == 'flat'"), rows({"e0": [None]}, structure="tree"))
    row = noise_floor(lost).iloc[-1]
    assert row["reading"] == "not available: no entry is complete in both arms" and row["interval"].endswith("no pairs")
    echoed = RESULTS.assign(judge="echo", echoed=RESULTS["score"] >= 3, echo_overlap=0.5, echo_threshold=0.5)
    table = noise_floor(echoed.assign(score=np.nan))
    assert table["outcome"].eq("echo").all() and table["exceeds_noise"].tolist() == [False, True, False]
    assert list(noise_floor(RESULTS.iloc[:0]).columns)[:3] == ["model", "failure_type", "arm"]
    with pytest.raises(InputError, match="baseline must be one of"):
        noise_floor(RESULTS, baseline="fixed")
    with pytest.raises(InputError, match="share their key"):
        noise_floor(frames(RESULTS, RESULTS))
