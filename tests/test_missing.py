"""What is missing and what a run took: shares that differ, rows by reason, calls counted once, unknown never 0."""

from __future__ import annotations

from math import comb

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from structmem.missing import completeness, differ, in_words
from structmem.results import read_results


def fisher(a, n, b, m):
    """The two-sided exact p by enumeration: tables with these margins that are at most as likely as this one."""
    total, k = n + m, a + b
    weights = {i: comb(n, i) * comb(m, k - i) for i in range(max(0, k - m), min(n, k) + 1)}
    return sum(w for w in weights.values() if w <= weights[a]) / comb(total, k)


class TestDiffer:
    @pytest.mark.parametrize(
        ("shares", "expected"),
        [
            ((3, 3, 0, 3), True),  # no test could tell, but all verdicts of an arm are gone
            ((1, 20, 0, 20), False),  # 5 points are not more than 5
            ((2, 20, 0, 20), True),
            ((12, 600, 0, 600), True),  # 2 points, but no chance
            ((12, 600, 8, 600), False),
            ((0, 600, 0, 600), False),
            ((600, 600, 600, 600), False),
            ((0, 0, 3, 3), False),
        ],
    )
    def test_by_hand(self, shares, expected):
        assert differ(*shares) is expected
        assert differ(*shares[2:], *shares[:2]) is expected

    @given(st.integers(0, 60), st.integers(1, 60), st.integers(0, 60), st.integers(1, 60), st.integers(1, 10))
    @settings(max_examples=150, deadline=None)
    def test_it_is_the_gap_or_the_exact_test(self, a, n, b, m, pairs):
        a, b = min(a, n), min(b, m)
        p, level = fisher(a, n, b, m), 0.05 / pairs
        if abs(p - level) < 1e-9:
            return
        beyond = abs(a * m - b * n) * 100 > 20 * n * m
        assert differ(a, n, b, m, gap_pp=20, pairs=pairs) == (beyond or p < level)


def test_counts_in_words_are_ordered_and_leave_out_nothing_counted():
    assert in_words({"b": 1, "a": 1, "c": 3, "d": 0}) == "c 3, a 1, b 1"
    assert in_words({}) == ""


def table(*changes):
    base = {
        "status": "ok", "status_reason": None, "structurer": "", "answer_key": None, "answer_requests": 1,
        "answer_cost_usd": 0.25, "judge_key": None, "judge_attempts": 1, "judge_requests": 1, "judge_cost_usd": 0.5,
        "structurer_key": None, "structurer_cost_usd": None,
    }  # fmt: skip
    rows = [base | {"answer_key": f"a{i}", "judge_key": f"j{i}"} | change for i, change in enumerate(changes)]
    return pd.DataFrame(rows)


class TestCompleteness:
    def test_a_whole_run(self):
        found = completeness(table({}, {"answer_requests": 3}, {"judge_attempts": 2, "judge_requests": 4}))
        assert (found.n_asked, found.n_scored, found.n_missing, found.exit_status) == (3, 3, 0, 0)
        assert (found.took["answer"].n_calls, found.took["answer"].n_requests) == (3, 5)
        assert (found.took["judge"].n_attempts, found.took["judge"].n_requests) == (4, 6)
        assert (found.cost_usd, found.n_cost_unknown) == (2.25, 0)
        assert str(found).splitlines() == [
            "Rows: 3 asked, 3 scored, none missing.",
            "Answers: 3 calls, 5 requests.",
            "Verdicts: 3 calls in 4 attempts (1 asked again), 6 requests.",
            "Cost: $2.25.",
        ]

    def test_missing_rows_are_named_and_decide_the_exit_status(self):
        none = {"answer_key": None, "judge_key": None, "answer_cost_usd": None, "judge_cost_usd": None}
        found = completeness(
            table(
                {},
                {"status": "no_verdict", "status_reason": "timeout", "judge_cost_usd": None},
                {"status": "no_response", "status_reason": "not_asked"} | none,
                {"status": "no_response", "status_reason": "not_asked"} | none,
            )
        )
        assert (found.n_asked, found.n_scored, found.n_missing, found.exit_status) == (4, 1, 3, 1)
        assert found.missing == {"no_response: not_asked": 2, "no_verdict: timeout": 1}
        said = str(found)
        assert "4 asked, 1 scored, 3 missing (no_response: not_asked 2, no_verdict: timeout 1)" in said
        assert "Cost: at least $1.00 (not known for 1 of 2 verdicts)." in said
        assert "Run again" in said

    def test_rows_that_no_judge_could_score_are_said_and_are_no_loss(self):
        found = completeness(table({}, {"status": "no_verdict", "status_reason": "not_scored_by_echo"}))
        assert (found.n_scored, found.n_missing, found.exit_status) == (1, 0, 0)
        assert "none missing, 1 that the judge cannot score (no_verdict: not_scored_by_echo 1)." in str(found)
        refused = completeness(table({"status": "no_response", "status_reason": "not_scored"}))
        assert refused.exit_status == 1  # the reason excuses a verdict only

    def test_a_call_that_rows_share_is_counted_once(self):
        shared = {"answer_key": "a", "judge_key": "j", "structurer_key": "s t", "structurer_cost_usd": 2.0}
        found = completeness(table(shared, shared, shared))
        assert [found.took[role].n_calls for role in ("answer", "judge", "structurer")] == [1, 1, 1]
        assert found.cost_usd == 2.75

    def test_unknown_is_never_nothing(self):
        found = completeness(table({}, {"answer_cost_usd": None, "answer_requests": None}))
        assert "Answers: 2 calls, at least 1 requests." in str(found)
        assert "at least $1.25 (not known for 1 of 2 answers)" in str(found)
        dark = {"answer_cost_usd": None, "judge_cost_usd": None, "answer_requests": None, "judge_requests": None}
        assert str(completeness(table(dark))).splitlines()[1:] == [
            "Answers: 1 calls.",
            "Verdicts: 1 calls.",
            "Cost: not known for 1 of 1 answers and 1 of 1 verdicts.",
        ]
        by_model = {"structurer_key": "s", "structurer": "some/model"}
        assert completeness(table(by_model)).n_cost_unknown == 1
        assert completeness(table(by_model | {"structurer": "embedding"})).n_cost_unknown == 0

    def test_what_a_judge_took_before_it_was_counted_is_unknown(self):
        old = table({}, {}).drop(columns=["judge_attempts", "judge_requests", "answer_requests"])
        found = completeness(old)
        assert (found.cost_usd, found.took["judge"].n_cost_unknown) == (1.5, 2)
        assert "at least $1.50 (not known for 2 of 2 verdicts)" in str(found)

    def test_recorded_results(self):
        results = read_results("recorded")
        found = completeness(results)
        assert found.n_asked == len(results) == found.n_scored + sum(found.unscorable.values())
        assert found.exit_status == 0 and found.cost_usd == 0 and found.n_cost_unknown == 0
        assert found.took["answer"].n_calls == results["answer_key"].nunique()
        assert found.facts()["took"]["answer"]["n_calls"] == found.took["answer"].n_calls

    def test_nothing_asked(self):
        found = completeness(table({}).iloc[:0])
        assert (found.n_asked, found.exit_status, found.took) == (0, 0, {})

    def test_generations_without_a_row_are_asked_and_missing(self):
        given = {"entry_id": ["a", "a", "a", "b", "b", "c"], "generation": [0, 1, 2, 0, 2, 1]}
        results = table(*[{}] * 6).assign(structure="flat", **given)
        found = completeness(results)
        assert (found.n_asked, found.n_scored, found.missing, found.exit_status) == (9, 6, {"no row": 3}, 1)
        assert "9 asked, 6 scored, 3 missing (no row 3)" in str(found) and "Run again" in str(found)
        other = results[results["generation"] == 0].assign(structure="fixed")  # another arm, of one generation
        assert completeness(pd.concat([results, other])).missing == {"no row": 3}
        assert completeness(results[results["entry_id"] == "a"]).exit_status == 0

    def test_a_cost_of_which_nothing_is_known_is_not_a_number(self):
        facts = completeness(table({"answer_cost_usd": None}, {"answer_cost_usd": None})).facts()
        assert (facts["took"]["answer"]["cost_usd"], facts["cost_usd"], facts["n_cost_unknown"]) == (None, 1.0, 2)
        dark = completeness(table({"answer_cost_usd": None, "judge_cost_usd": None}))
        assert (dark.cost_usd, dark.facts()["cost_usd"]) == (None, None)
        assert completeness(table({"answer_cost_usd": 0.0, "judge_cost_usd": 0.0})).facts()["cost_usd"] == 0
        assert completeness(table({}).iloc[:0]).cost_usd == 0

    def test_of_rows_that_share_a_call_the_one_that_knows_counts(self):
        same = {"answer_key": "a", "judge_key": "j"}
        less = same | {"answer_cost_usd": None, "judge_attempts": None, "judge_requests": None}
        for pair in ((less, same), (same, less)):
            found = completeness(table(*pair))
            assert (found.cost_usd, found.n_cost_unknown, found.took["judge"].n_requests) == (0.75, 0, 1)

    @pytest.mark.parametrize(
        ("sortings", "cost", "unknown"),
        [
            ({"k1": 2.0, "k1 p1": 2.5}, 2.5, 0),
            ({"k1 p1": 2.5, "k1": 2.0}, 2.5, 0),
            ({"k1 p1": 2.5, "k1 p2": 3.0, "k1": 2.0}, 3.5, 0),
            ({"k1": 2.0, "k2": 1.0, "k1 k2": 3.0}, 3.0, 0),
            ({"k1 p1": 2.5, "k1 p2": 3.0}, 2.5, 1),  # what k1 took is not known: at least 2.50
            ({"k1": None, "k1 p1": None, "k2": 1.0}, 1.0, 2),
            ({"k1": None}, None, 1),
        ],
    )
    def test_a_call_that_sortings_share_is_paid_for_once(self, sortings, cost, unknown):
        rows = [
            {"structurer": "m", "structurer_key": key, "structurer_cost_usd": paid} for key, paid in sortings.items()
        ]
        took = completeness(table(*rows)).took["structurer"]
        assert (took.cost_usd, took.n_cost_unknown, took.n_calls) == (cost, unknown, len(sortings))
