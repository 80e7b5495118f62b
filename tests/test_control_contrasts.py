"""The ladder of controls: steps that add up, against scipy's paired tests, Holm by hand and Fieller by inversion."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from test_stats import arm, frames, rows

from structmem.control_contrasts import CONTRASTS, LADDER, NOISE, OTHER, RUNGS, SIDE, WHOLE, ladder
from structmem.errors import InputError
from structmem.ladder_words import ladder_reading

N = 60


def rung(structure, outcomes, **settings):
    who = {} if structure in ("flat", "shuffled", "empty") else {"structurer": "embedding", "taxonomy": "life11"}
    return arm(outcomes, structure=structure, **who | settings)


def correlated(rates, n=N, seed=0):
    """Outcomes of several arms that meet the same entries, as booleans, arm by arm; the same at every call."""
    rng = np.random.default_rng([seed, *(int(1000 * rate) for rate in rates)])
    shared = rng.standard_normal(n)
    latent = [0.8 * shared + 0.6 * rng.standard_normal(n) for _ in rates]
    return [one > stats.norm.isf(rate) for one, rate in zip(latent, rates, strict=True)]


def five_arms(rates=(0.7, 0.65, 0.6, 0.45, 0.3), seed=0, **settings):
    cells = correlated(rates, seed=seed)
    return frames(*(rung(structure, out, **settings) for structure, out in zip(RUNGS, cells, strict=True)))


def wide(results, value=None):
    """Entries × structures: 0 or 1, or the scores."""
    out = results["score"] if value else 1.0 * (results["score"] >= 3)
    return results.assign(out=out).pivot(index="entry_id", columns="structure", values="out")


def pick(table, adds, model="m"):
    found = table[(table["adds"] == adds) & (table["model"] == model)]
    assert len(found) == 1
    return found.iloc[0]


def holm(p):
    """By hand: sorted, times what is left, never falling."""
    order, found, most = np.argsort(p), np.empty(len(p)), 0.0
    for place, k in enumerate(order):
        most = max(most, min(1.0, (len(p) - place) * p[k]))
        found[k] = most
    return found


RESULTS = five_arms()
TABLE = ladder(RESULTS)


def test_steps_are_paired_t_tests_over_entries_and_add_up():
    cells = wide(RESULTS)
    steps = TABLE[TABLE["part"] == LADDER]
    assert steps["adds"].tolist() == ["order", "heading", "grouping", "naming"]
    p = []
    for (below, above), (_, row) in zip(zip(RUNGS, RUNGS[1:], strict=False), steps.iterrows(), strict=True):
        expected = stats.ttest_rel(cells[above], cells[below])
        ends = expected.confidence_interval()
        assert row["difference_pp"] == pytest.approx(100 * (cells[above] - cells[below]).mean())
        assert (row["low_pp"], row["high_pp"]) == pytest.approx((100 * ends.low, 100 * ends.high))
        assert row["t_p"] == pytest.approx(expected.pvalue) and row["baseline"] == below
        assert row["interval"] == "t over entries" and row["n_entries"] == N and row["n_left_out"] == 0
        scores = stats.ttest_rel(wide(RESULTS, "score")[above], wide(RESULTS, "score")[below])
        assert row["mean_score_t_p"] == pytest.approx(scores.pvalue)
        assert row["mean_score_high"] == pytest.approx(scores.confidence_interval().high)
        p.append(expected.pvalue)
    assert steps["holm_p"].tolist() == pytest.approx(holm(np.array(p)).tolist())
    whole = pick(TABLE, "all four")
    for column in ("difference_pp", "at_1_difference_pp", "mean_score_difference"):
        assert steps[column].sum() == pytest.approx(whole[column])
    assert np.isnan(whole["holm_p"]) and (TABLE["analysis"] == "exploratory").all()


def test_shares_add_up_to_one_and_their_intervals_invert_the_t_test():
    cells = wide(RESULTS)
    steps = TABLE[TABLE["part"] == LADDER].set_index("adds")
    assert pick(TABLE, "all four")["high_pp"] < 0
    assert steps["gain_share"].sum() == pytest.approx(1) and steps["mean_score_gain_share"].sum() == pytest.approx(1)
    whole = cells["fixed"] - cells["flat"]
    for adds, (below, above) in zip(steps.index, zip(RUNGS, RUNGS[1:], strict=False), strict=True):
        part, row = cells[above] - cells[below], steps.loc[adds]
        for end in ("gain_share_low", "gain_share_high"):  # where 'the share is this' is just not rejected
            assert stats.ttest_1samp(part - row[end] * whole, 0).pvalue == pytest.approx(0.05, abs=1e-6)
        assert row["gain_share_low"] < row["gain_share"] < row["gain_share_high"]


def test_no_shares_of_what_may_be_nothing():
    table = ladder(five_arms((0.5, 0.5, 0.5, 0.5, 0.5)))
    whole = pick(table, "all four")
    assert whole["low_pp"] < 0 < whole["high_pp"]
    assert whole["remark"] == (
        "no shares of the rate's difference: its interval holds 0; no shares of the mean score's difference: its "
        "interval holds 0"
    )
    assert table["gain_share"].isna().all() and table["mean_score_gain_share"].isna().all()
    still = ladder(frames(*(rung(s, [True, False] * 10) for s in RUNGS)))
    assert (still["difference_pp"] == 0).all() and still["low_pp"].isna().all() and still["holm_p"].isna().all()
    assert set(still["interval"]) == {"not available: no variation"}
    assert "it has no interval" in pick(still, "all four")["remark"]


def test_a_step_without_a_p_value_still_counts_in_holm():
    cells = correlated((0.7, 0.5, 0.3))
    table = ladder(frames(*(rung(s, cells[k]) for s, k in zip(RUNGS, (0, 0, 0, 1, 2), strict=True))))
    p = table[table["part"] == LADDER].set_index("adds")
    assert p.loc[["order", "heading"], ["t_p", "holm_p"]].isna().all(axis=None)
    raw = p.loc[["grouping", "naming"], "t_p"].to_numpy()
    assert p.loc[["grouping", "naming"], "holm_p"].tolist() == pytest.approx(holm(np.array([1, 1, *raw]))[2:].tolist())


def test_over_models_the_entries_are_the_clusters():
    results = frames(*(five_arms(model=model, seed=k) for k, model in enumerate("ab")))
    table = ladder(results)
    assert table["model"].unique().tolist() == ["a", "b", "all models"]
    by_entry = {m: wide(results[results["model"] == m]) for m in "ab"}
    for adds, above, below in (("grouping", "unlabelled", "one_group"), ("all four", "fixed", "flat")):
        gaps = sum(cells[above] - cells[below] for cells in by_entry.values()) / 2
        expected = stats.ttest_1samp(100 * gaps, 0)
        row = pick(table, adds, "all models")
        assert row["difference_pp"] == pytest.approx(100 * gaps.mean()) and row["n_models"] == 2
        assert row["low_pp"] == pytest.approx(expected.confidence_interval().low)
        assert row["t_p"] == pytest.approx(expected.pvalue) and row["n_entries"] == N
    steps = table[(table["part"] == LADDER) & (table["model"] == "all models")]
    assert steps["difference_pp"].sum() == pytest.approx(pick(table, "all four", "all models")["difference_pp"])
    assert steps["gain_share"].sum() == pytest.approx(1)


def test_random_arms_are_averaged_over_their_draws_within_an_entry():
    flat, fixed, *draws = correlated((0.6, 0.4, 0.5, 0.5, 0.3))
    results = frames(
        rung("flat", flat), rung("fixed", fixed), *(rung("random", d, partition_draw=k) for k, d in enumerate(draws))
    )
    row = pick(ladder(results), "random members")
    gaps = 100.0 * (np.mean(draws, axis=0) - fixed)
    expected = stats.ttest_1samp(gaps, 0).confidence_interval()
    assert row["part"] == SIDE and row["arm"] == "random (embedding)" and row["n_draws"] == 3 == row["n_runs"]
    assert (row["difference_pp"], row["low_pp"], row["high_pp"]) == pytest.approx((gaps.mean(), *expected))
    assert row["draw_sd_pp"] == pytest.approx(np.std([100 * np.mean(d) for d in draws], ddof=1))
    assert row["draw_sd_mean_score"] == pytest.approx(row["draw_sd_pp"] / 100 * 4)  # a failure is 5, a pass 1
    both = frames(results, results.assign(model="other"))
    assert pick(ladder(both), "random members", "all models")["draw_sd_pp"] == pytest.approx(row["draw_sd_pp"])


def test_an_entry_that_one_rung_lacks_is_in_no_step():
    lost = RESULTS.copy()
    at = (lost["structure"] == "one_group") & (lost["entry_id"] == "e7")
    lost.loc[at, ["status", "score"]] = ["no_verdict", np.nan]
    table = ladder(frames(lost, rung("shuffled", correlated((0.5,))[0])))
    of_ladder = table[table["part"].isin((LADDER, WHOLE))]
    assert (of_ladder["n_entries"] == N - 1).all() and (of_ladder["n_left_out"] == 1).all()
    cells = wide(RESULTS).drop("e7")
    assert pick(table, "all four")["difference_pp"] == pytest.approx(100 * (cells["fixed"] - cells["flat"]).mean())
    assert pick(table, "random order")["n_entries"] == N  # a side contrast needs its own two arms


@settings(max_examples=5, deadline=None)
@given(
    st.lists(
        st.lists(st.sampled_from([1, 2, 3, 4, 5, None]), min_size=5, max_size=5), min_size=1, max_size=8
    )
)  # fmt: skip
def test_steps_add_up_whatever_is_missing(scores):
    results = frames(*(
        rows({f"e{k}": [line[place]] for k, line in enumerate(scores)}, structure=structure, structurer="x")
        for place, structure in enumerate(RUNGS)
    ))  # fmt: skip
    table = ladder(results)
    steps, whole = table[table["part"] == LADDER], pick(table, "all four")
    complete = sum(None not in line for line in scores)
    assert whole["n_entries"] == complete == len(scores) - whole["n_left_out"]
    if not complete:
        assert steps["difference_pp"].isna().all() and "no entry is complete in all arms" in whole["remark"]
        return
    for column in ("difference_pp", "mean_score_difference"):
        assert steps[column].sum() == pytest.approx(whole[column], abs=1e-9)
    if complete == 1:
        assert set(table["interval"]) == {"not available: one entry"}


def test_side_contrasts_and_noise():
    flat, second, tree, top, leaves, rag, empty = correlated((0.5,) * 7)
    results = frames(
        rung("flat", flat), rung("flat", second, replicate=1), rung("tree", tree), rung("tree_top", top),
        rung("tree_leaves", leaves), rung("rag", rag, taxonomy=""), rung("empty", empty),
    )  # fmt: skip
    table = ladder(results)
    assert table["part"].tolist() == [SIDE] * 3 + [OTHER] * 2 + [NOISE]
    noise = table.iloc[-1]
    assert (noise["arm"], noise["baseline"]) == ("flat (A/A)", "flat")
    assert noise["difference_pp"] == pytest.approx(100 * (second.mean() - flat.mean()))
    by_hand = {
        "leaves under domains": tree.mean() - top.mean(),
        "domains over leaves": tree.mean() - leaves.mean(),
        "near memories only": rag.mean() - flat.mean(),
        "no memories": empty.mean() - flat.mean(),
    }
    for adds, expected in by_hand.items():
        assert pick(table, adds)["difference_pp"] == pytest.approx(100 * expected), adds


def test_runs_that_all_arms_have_are_used():
    results = frames(RESULTS, five_arms(seed=1, replicate=1), rung("flat", correlated((0.5,))[0], replicate=2))
    row = pick(ladder(results), "all four")
    used = results[results["replicate"] < 2].assign(bad=lambda frame: 1.0 * (frame["score"] >= 3))
    means = used.groupby(["entry_id", "structure"])["bad"].mean().unstack()
    assert row["n_runs"] == 2 and row["difference_pp"] == pytest.approx(100 * (means["fixed"] - means["flat"]).mean())


def test_another_way_of_sorting_is_another_ladder():
    other = five_arms(seed=1).query("structure != 'flat'").assign(structurer="x/y")
    table = ladder(frames(RESULTS, other))
    assert table.groupby("structurer").size().to_dict() == {"embedding": 5, "x/y": 5}
    mine = table[table["structurer"] == "embedding"].reset_index(drop=True)
    assert mine["difference_pp"].tolist() == TABLE["difference_pp"].tolist()
    half = ladder(frames(RESULTS, other.query("structure == 'fixed'")))
    lacking = half[half["structurer"] == "x/y"]
    assert lacking["remark"].tolist() == ["the ladder is not whole, without reordered, one_group, unlabelled"]
    assert lacking["gain_share"].isna().all()


def test_echo_has_overlaps_for_scores():
    results = RESULTS.assign(
        judge="echo", echo_overlap=RESULTS["score"] / 10, echoed=RESULTS["score"] >= 3, echo_threshold=0.3
    ).drop(columns="score")
    table = ladder(results)
    assert set(table["outcome"]) == {"echo"}
    assert table["difference_pp"].tolist() == pytest.approx(TABLE["difference_pp"].tolist())
    assert table["mean_score_difference"].tolist() == pytest.approx((TABLE["mean_score_difference"] / 10).tolist())
    with pytest.raises(InputError, match="judged by 'echo'"):
        ladder(results, outcome="failure")


def test_a_maximum_over_other_generations_is_not_compared():
    more = rows({f"e{k}": [1, 5] for k in range(N)}, structure="reordered", structurer="embedding", taxonomy="life11")
    table = ladder(frames(RESULTS[RESULTS["structure"] != "reordered"], more))
    assert "not comparable: K = 2, the baseline has 1" in pick(table, "order")["remark"]
    assert np.isnan(pick(table, "order")["difference_pp"]) and pick(table, "order")["n_entries"] == 0


@pytest.mark.parametrize(
    ("results", "message"),
    [
        (
            RESULTS[RESULTS["structure"] == "flat"],
            r"hold the structures \['flat'\], and none of the ladder's contrasts",
        ),
        (frames(RESULTS, RESULTS.head(1)), "share their key"),
        (RESULTS.drop(columns="structure"), "lack the columns"),
        (
            frames(RESULTS, *(rung("rag", [True] * N, structurer_options=o) for o in ("{}", '{"top_k":2}'))),
            "structure 'rag' is there under several structurer_options",
        ),
    ],
)
def test_refusals(results, message):
    with pytest.raises(InputError, match=message):
        ladder(results)


def test_no_rows_no_ladder(capsys):
    table = ladder(RESULTS.head(0))
    assert len(table) == 0 and "gain_share" in table
    ladder_reading(table)
    assert capsys.readouterr().out == "No results, nothing to read.\n"


def test_every_contrast_is_about_known_structures():
    from structmem.structures import STRUCTURES, spec

    assert {name for contrast in CONTRASTS for name in contrast[2:]} <= set(STRUCTURES)
    other = {contrast.structure for contrast in CONTRASTS if contrast.part == OTHER}
    assert other == {name for name in STRUCTURES if not spec(name).keeps_all}
    # Each step starts where the one before ends.
    steps = [contrast[2:] for contrast in CONTRASTS if contrast.part == LADDER]
    assert [below for _, below in steps] + ["fixed"] == ["flat"] + [above for above, _ in steps]


# --- in words -------------------------------------------------------------------------------------


def test_the_reading_says_what_is_shown_and_what_is_not(capsys):
    ladder_reading(TABLE)
    told = capsys.readouterr().out
    assert "m, cross_domain:\n  fixed (embedding) against flat, 60 entries, 1 generation: " in told
    assert "Sorted by an embedding model: not the paper's method." in told and "echo" not in told
    steps = TABLE[TABLE["part"] == LADDER]
    for row in steps.to_dict("records"):
        line = next(line for line in told.splitlines() if line.startswith(f"    {row['adds']}: "))
        assert ("are not distinguishable from 0" in line) == (
            row["holm_p"] >= 0.05 and row["mean_score_holm_p"] >= 0.05
        )
        assert f"share of the whole: {100 * row['gain_share']:.0f} %".replace("-", "−") in line
    ladder_reading(ladder(frames(*(rung(s, [True, False] * 10) for s in RUNGS))))
    told = capsys.readouterr().out
    assert told.count("no variation over entries, so nothing can be said") == 5 and "nan" not in told
    ladder_reading(ladder(frames(RESULTS, five_arms(seed=1, model="b"))))
    told = capsys.readouterr().out
    assert "all models, cross_domain:" in told and "60 entries, 2 models, 1 generation" in told and "\nb," not in told
    flat, empty = (rung(name, [True, False] * 4) for name in ("flat", "empty"))
    ladder_reading(ladder(frames(flat, empty.assign(status="no_verdict", score=np.nan))))
    told = capsys.readouterr().out
    assert "nothing to compare" in told and "Without any memories" not in told
    with pytest.raises(InputError, match="takes the table of ladder"):
        ladder_reading(pd.DataFrame({"arm": []}))
