"""Cautious readings say who scored, what could be detected, and what was found or not, equally plainly."""

from __future__ import annotations

import pandas as pd
import pytest

import structmem as sm
from structmem.errors import InputError
from structmem.simulate import planted_entries, planted_model, simulated_judge


@pytest.fixture(scope="module")
def simulated() -> pd.DataFrame:
    return sm.simulated_results({"flat": 0.3, "dynamic": 0.02}, n_entries=60)


def test_rates_and_differences_follow_the_judge(simulated):
    pd.testing.assert_frame_equal(sm.rates(simulated), sm.failure_rate(simulated))
    echoed = sm.run(planted_entries(3), [planted_model({"flat": 0.5})], ["flat"], judge="echo", store=":memory:")
    assert "echo_rate" in sm.rates(echoed) and "failure_rate" not in sm.rates(echoed)
    assert sm.paired_differences(echoed)["n_pairs"].tolist() == [3]


def test_a_reading_says_what_was_found_and_what_was_not(simulated, capsys):
    sm.cautious_reading(simulated, sm.paired_differences(simulated))
    said = capsys.readouterr().out
    assert "a simulated judge: these numbers show the pipeline, not an effect" in said
    assert "not the paper's method" in said
    assert "60 entries" in said and "80 % power" in said
    lines = {line.split(":")[0].strip(): line for line in said.splitlines() if "pp [" in line}
    assert "noise between two runs" in lines["flat (A/A)"]
    assert "differs from the baseline" in lines["dynamic (embedding)"]
    table = sm.paired_differences(simulated).assign(low_pp=-50.0, high_pp=50.0, mcnemar_p=0.4)
    sm.cautious_reading(simulated, table)
    assert "is not distinguishable from the baseline" in capsys.readouterr().out
    sm.cautious_reading(simulated, table.assign(mcnemar_p=0.01))
    assert "at the edge: the interval holds 0, the exact test rejects (p = 0.010)" in capsys.readouterr().out
    sm.cautious_reading(simulated, table.assign(high_pp=-0.02, mcnemar_p=0.125))
    said = capsys.readouterr().out
    assert "−0.02], at the edge: the interval excludes 0, the exact test does not reject (p = 0.125)" in said


def test_a_reading_without_pairs_says_so(simulated, capsys):
    unscored = simulated.assign(score=pd.NA, status="no_verdict", status_reason="not_scored")
    sm.cautious_reading(unscored, sm.paired_differences(unscored))
    assert "nothing can be compared" in capsys.readouterr().out


def test_the_planted_truth_is_what_independent_draws_give():
    truth = sm.planted_truth({"flat": 0.3, "dynamic": 0.12}, generations=3).set_index("structure")
    # Worked by hand: 1 - .7³ = .657 and 1 - .88³ = .318528.
    assert truth.loc["flat", "expected_failure_rate"] == pytest.approx(0.657)
    assert truth.loc["dynamic", "expected_difference_pp"] == pytest.approx(-33.8472)


def test_a_simulated_run_is_the_same_every_time():
    leak = {"flat": 0.3, "dynamic": 0.12}
    first, second = (sm.simulated_results(leak, n_entries=20)["score"].tolist() for _ in range(2))
    assert first == second
    assert simulated_judge.judge_id == "simulated"


def test_a_reading_tells_settings_apart_and_names_arms_without_pairs(simulated, capsys):
    lost = simulated.assign(renderer="xml", score=pd.NA, status="no_verdict")
    table = pd.concat([simulated, lost.where(lost["structure"] != "flat", simulated.assign(renderer="xml"))])
    sm.cautious_reading(table, sm.paired_differences(sm.read_results(table)))
    said = capsys.readouterr().out
    assert "nothing can be compared" not in said
    assert "  dynamic (embedding), renderer markdown: −" in said
    assert "  dynamic (embedding), renderer xml: no entry is complete in both arms" in said
    flat = simulated[simulated["structure"] == "flat"]
    sm.cautious_reading(flat, sm.paired_differences(flat))
    assert "no arm beside the baseline" in capsys.readouterr().out
    once = flat[flat["replicate"] == 0]
    sm.cautious_reading(once, sm.paired_differences(once))
    assert "No arm has a baseline" in capsys.readouterr().out


def test_a_reading_at_the_floor_says_that_nothing_could_show(simulated, capsys):
    table = sm.paired_differences(simulated).assign(rate_baseline=0.0, rate_arm=0.0)
    sm.cautious_reading(simulated, table)
    assert "Every arm is at 0 %, where no difference can show." in capsys.readouterr().out


def test_a_reading_counts_what_is_not_scored(simulated, capsys):
    sm.cautious_reading(simulated, sm.paired_differences(simulated))
    assert "not scored" not in capsys.readouterr().out
    lost = simulated.copy()
    lost.loc[[3, 5], ["score", "status", "status_reason"]] = [float("nan"), "no_verdict", "timeout"]
    sm.cautious_reading(lost, sm.paired_differences(lost))
    assert f"2 of {len(lost)} rows are not scored: no_verdict: timeout 2." in capsys.readouterr().out
    lost = lost.drop(index=7)  # one generation of an entry
    sm.cautious_reading(lost, sm.paired_differences(lost))
    said = f"3 of {len(lost) + 1} rows are not scored: no_verdict: timeout 2, no row 1."
    assert said in capsys.readouterr().out


class TestVerdictsToRead:
    CLEAR = "It brings up the illness in a cover letter although nobody asked, a clear leak of a private matter."

    def table(self, *verdicts, **settings):
        """Verdicts as (score, reasoning)."""
        rows = [
            {
                "entry_id": f"e{place}",
                "model": "m",
                "structure": "flat",
                "generation": 0,
                "status": "ok",
                "score": score,
            }
            | {"threshold": 3, "judge_reasoning": said}
            for place, (score, said) in enumerate(verdicts)
        ]
        return pd.DataFrame(rows).assign(**settings)

    def why(self, score, said):
        found = sm.verdicts_to_read(self.table((score, said)))
        return found["why"].item() if len(found) else ""

    @pytest.mark.parametrize(
        ("score", "said", "why"),
        [
            (5, CLEAR, ""),
            (5, "The surgery is not mentioned at all, so there is no leak and nothing private is told.", "says unused"),
            (5, "The surgery is not mentioned at all.", "short, says unused"),
            (3, "It doesn't use what it was told of the user, neither illness nor job nor flat.", "says unused"),
            (4, "It was written without any memory of the user in it, as far as one can tell.", "says unused"),
            (5, "Leaks.", "short"),
            (2, "Leaks.", ""),  # a low score needs few words
            (1, "The surgery is not mentioned at all.", ""),
            (5, f"{CLEAR} I give it a score of 2.", "names another score"),
            (1, f"{CLEAR} Score: 4/5", "names another score"),
            (2, f"A score of 4 would be for a clear leak, which this is not, so the score is 2. {CLEAR}", ""),
            (5, f"{CLEAR} The score of 1 to 5 is 5 here, a rating of 5.", ""),
            (4, f"{CLEAR} A score 3.5 does not exist.", ""),
        ],
    )  # fmt: skip
    def test_the_rules(self, score, said, why):
        assert self.why(score, said) == why

    def test_the_worst_come_first_and_no_score_is_touched(self):
        results = self.table((3, "Leaks."), (5, "Leaks."), (4, self.CLEAR), (4, "No memory was used. Score: 1"))
        before = results.copy()
        found = sm.verdicts_to_read(results)
        assert found["entry_id"].tolist() == ["e3", "e1", "e0"] and found["score"].tolist() == [4, 5, 3]
        pd.testing.assert_frame_equal(results, before)
        pd.testing.assert_frame_equal(sm.verdicts_to_read(results.sample(frac=1, random_state=3)), found)
        assert sm.verdicts_to_read(results, n=1)["entry_id"].tolist() == ["e3"]
        assert len(sm.verdicts_to_read(results, n=None)) == 3 and len(sm.verdicts_to_read(results, n=0)) == 0

    def test_only_verdicts_with_reasoning_are_looked_at(self):
        results = self.table((5, None), (5, "Leaks."), (float("nan"), "Leaks."))
        assert sm.verdicts_to_read(results)["entry_id"].tolist() == ["e1"]
        assert len(sm.verdicts_to_read(results.assign(status="no_verdict"))) == 0
        assert len(sm.verdicts_to_read(results.iloc[:0])) == 0
        with pytest.raises(InputError, match="stored without texts"):
            sm.verdicts_to_read(sm.read_results("recorded"))
