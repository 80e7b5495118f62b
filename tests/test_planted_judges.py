"""Planted judges err as planted, and the sentences about them say what the tables found."""

from __future__ import annotations

import pandas as pd
import pytest

from structmem.agreement import judge_agreement
from structmem.correction import corrected_rate, judge_accuracy
from structmem.errors import InputError
from structmem.judge_words import judge_reading
from structmem.planted import simulated_scores
from structmem.planted_judges import misjudged


def truth(n=300, failure_type="cross_domain"):
    arms = [("m", "flat", 0.6, failure_type), ("m", "dynamic", 0.4, failure_type)]
    return simulated_scores(pd.DataFrame(arms, columns=["model", "structure", "failure_rate", "failure_type"]), n)


@pytest.mark.parametrize("failure_type", ["cross_domain", "beneficial_memory_usage"])
def test_errors_are_as_often_as_planted(failure_type):
    true = truth(400, failure_type)
    judged = misjudged(true, {"flat": 0.9, "dynamic": 0.6}, 0.8, seed=4)
    bad = [(table["score"] >= 3) == (failure_type == "cross_domain") for table in (true, judged)]
    agree = (bad[0] == bad[1]).groupby([true["structure"], bad[0]]).mean()
    # Four standard errors of a share of at least 100 answers.
    assert agree["flat", True] == pytest.approx(0.9, abs=0.12) and agree["dynamic", True] == pytest.approx(0.6, abs=0.2)
    assert agree["flat", False] == pytest.approx(0.8, abs=0.16)
    assert (judged.loc[bad[0] == bad[1], "score"] == true.loc[bad[0] == bad[1], "score"]).all()
    assert set(judged["score"]) <= set(true["score"]) and set(judged["judge"]) == {"simulated errors 4"}
    assert misjudged(true, 1, 1)["score"].equals(true["score"])
    assert not misjudged(true, 0.9, 0.9, seed=1)["score"].equals(misjudged(true, 0.9, 0.9, seed=2)["score"])


def test_unscored_answers_stay_unscored_and_one_class_has_a_neighbour():
    true = truth(20)
    true.loc[:5, "score"] = float("nan")
    assert misjudged(true, 0, 0)["score"].isna().tolist() == true["score"].isna().tolist()
    passed = true[true["score"] < 3]
    assert set(misjudged(passed, 1, 0)["score"]) == {3.0}


def test_a_score_stays_on_the_scale_of_its_failure_type():
    kinds = ("cross_domain", "beneficial_memory_usage")
    true = pd.concat([truth(100, kind) for kind in kinds], ignore_index=True)
    judged = misjudged(true, 0.5, 0.5)
    for kind in kinds:
        mine = true["failure_type"] == kind
        assert set(judged.loc[mine, "score"]) <= set(true.loc[mine, "score"])
        # Each error crosses its own threshold: about half of the verdicts are turned.
        turned = (judged.loc[mine, "score"] >= 3) != (true.loc[mine, "score"] >= 3)
        assert turned.mean() == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.drop(columns="score"), r"lack the columns \['score'\]"),
        (lambda t: t.assign(score=t["score"].map(str)), "score must hold numbers, got '"),
        (lambda t: t.assign(judge="echo"), "judged by 'echo', which gives no verdict"),
        (lambda t: t.drop(columns="model"), r"lack the columns \['model'\]"),
    ],
)
def test_results_without_numbers_as_scores_are_refused(change, words):
    with pytest.raises(InputError, match=words):
        misjudged(change(truth(5)), 0.9, 0.9)


@pytest.mark.parametrize("value", [1.2, {"flat": 0.5}])
def test_what_is_refused(value):
    with pytest.raises(InputError, match="sensitivity must lie in"):
        misjudged(truth(5), value, 0.9)


def test_the_reading_says_what_was_found(capsys):
    true = truth()
    judged = misjudged(true, {"flat": 0.95, "dynamic": 0.5}, 0.95)
    audited = judged.assign(
        judge_failed=pd.array(judged["score"] >= 3, dtype="boolean"), stratum="all", weight=1.0,
        human_failed=pd.array(true["score"] >= 3, dtype="boolean"),
    )  # fmt: skip
    accuracy, corrected = judge_accuracy(audited, by="structure"), corrected_rate(judged, audited)
    judge_reading(judge_agreement(true, judged), accuracy, corrected)
    said = capsys.readouterr().out
    assert said.startswith("Simulated: these numbers") and "nan" not in said
    assert "sensitivity: differs from flat, −" in said and "two judges can share a mistake" in said
    assert f"{corrected['difference_pp'].dropna().iloc[0]:+.1f} pp".replace("-", "−") in said
    assert said.rstrip().endswith("differs from flat")
    same = true.assign(score=1.0)
    judge_reading(judge_agreement(same, same), accuracy.head(0), corrected.head(0))
    assert "undefined: one class (2700 answers of 300 entries)" in capsys.readouterr().out
