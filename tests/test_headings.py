"""Naming a heading: what counts, the flat list as base rate, pairs of entries, and what is missing."""

from __future__ import annotations

import json
import math

import pandas as pd
import pytest

from structmem.errors import InputError
from structmem.experiment import run
from structmem.headings import heading_share, names
from structmem.intervals import clustered_mean
from structmem.results import read_results
from structmem.simulate import planted_entries, planted_model, simulated_judge
from structmem.tables import show

TYPESET = (
    "## Health\nSleep more.", "Health:\n- sleep", "**Health**\nSleep.", "- **Health:** sleep", "# health", "HEALTH",
    "1. Health: sleep", "Sleep, as your **health** shows.", "<health>\nsleep", "> Health:", "### *Health*",
)  # fmt: skip
CALLED = ("In your health section it says so.", "The domain 'health' says so.", 'See the category "Health".')
MENTIONED = ("Your health matters.", "Good for health, too.", "It is about Health: sleep.")
ELSEWHERE = ("Healthy food.", "A healthcare plan.", "Sleep more.", "Health-", "")


@pytest.mark.parametrize("answer", TYPESET + CALLED)
def test_a_heading_is_a_heading_and_a_mention(answer):
    assert names(answer, ["health"], "as a heading") and names(answer, ["health"])


@pytest.mark.parametrize("answer", MENTIONED)
def test_a_mention_is_no_heading(answer):
    assert names(answer, ["health"]) and not names(answer, ["health"], "as a heading")


@pytest.mark.parametrize("answer", ELSEWHERE[:3] + ELSEWHERE[4:])
def test_other_words_are_neither(answer):
    assert not names(answer, ["health"]) and not names(answer, ["health"], "as a heading")


def test_labels_of_any_kind():
    assert names("About pet care today", ["pet_care"]) and names("**Pet care:** daily", ["pet_care"], "as a heading")
    assert names("你的健康很重要", ["健康"]) and names("健康：\n多睡", ["健康"], "as a heading")
    assert names("Café (old):", ["café (old)"]) and not names("cafe", ["café"])
    assert not names("Anything: at all", []) and names("ÉTUDES:", ["études"], "as a heading")


def rows(answers, structure="dynamic", headings=("health",), **settings):
    """Results rows of one arm: ``answers`` maps an entry to its answers, None for none."""
    base = {"failure_type": "cross_domain", "model": "m", "structure": structure, "replicate": 0, "score": 1.0}
    base |= {"structurer": "llm" if structure != "flat" else "", "judge": "j", "judge_model": "", "threshold": 3.0}
    shown = json.dumps(list(headings)) if structure != "flat" else "[]"
    return pd.DataFrame(
        [
            base | {"entry_id": entry, "generation": place, "response": text, "headings": shown}
            | {"status": "ok" if text is not None else "no_response"} | settings
            for entry, texts in answers.items() for place, text in enumerate(texts)
        ]
    )  # fmt: skip


ARM = {"a": ["## Health", "my health", "nothing"], "b": ["a health tip", "no", "no"], "c": ["x", "y", "of health"]}
FLAT = {"a": ["my health", "no", "no"], "b": ["no", "no", "no"], "c": ["a health tip", "no", "no"]}


def test_shares_of_a_hand_worked_table():
    table = heading_share(pd.concat([rows(ARM), rows(FLAT, "flat")])).set_index("measure")
    mention, heading = table.loc["mention"], table.loc["as a heading"]
    assert mention["rate_naming"] == pytest.approx(4 / 9) and mention["rate_naming_baseline"] == pytest.approx(2 / 9)
    assert heading["rate_naming"] == pytest.approx(1 / 9) and heading["rate_naming_baseline"] == 0
    assert mention["difference_pp"] == pytest.approx(100 * 2 / 9)
    differences = [100 / 3, 100 / 3, 0]
    assert (mention["low_pp"], mention["high_pp"]) == pytest.approx(
        clustered_mean(pd.Series(differences).to_numpy(), pd.Series(list("abc")).to_numpy())
    )
    assert (mention["n_entries"], mention["n_answers"], mention["n_answers_baseline"]) == (3, 9, 9)
    assert mention["low"] < 4 / 9 < mention["high"] and mention["arm"] == "dynamic"


def test_each_entry_is_searched_for_its_own_headings():
    arm = pd.concat([rows({"a": ["money"]}, headings=("health",)), rows({"b": ["money"]}, headings=("money", "home"))])
    flat = rows({"a": ["money"], "b": ["home"]}, "flat")
    row = heading_share(pd.concat([arm, flat])).set_index("measure").loc["mention"]
    assert (row["rate_naming"], row["rate_naming_baseline"]) == (0.5, 0.5)
    assert row["difference_pp"] == 0 and row["interval"] == "not available: no variation"


def test_entries_without_a_partner_are_left_out_and_judges_count_once():
    arm = rows(ARM | {"d": ["health"], "c": [None, None, None]})
    both = pd.concat([arm, arm.assign(judge="two"), rows(FLAT, "flat")])
    row = heading_share(both).set_index("measure").loc["mention"]
    assert (row["n_entries"], row["n_answers"], row["rate_naming"]) == (2, 6, pytest.approx(0.5))


def test_arms_of_several_runs_meet_the_baseline_of_their_own():
    again = rows(ARM, replicate=1), rows({entry: ["health"] for entry in "abc"}, "flat", replicate=1)
    table = pd.concat([rows(ARM), rows(FLAT, "flat"), *again])
    found = heading_share(table).query("measure == 'mention'").set_index("replicate")
    assert found["rate_naming_baseline"].tolist() == [pytest.approx(2 / 9), 1.0]
    only = table[(table["structure"] != "flat") | (table["replicate"] == 0)]
    found = heading_share(only).query("measure == 'mention'").set_index("replicate")
    assert found["rate_naming_baseline"].tolist() == [pytest.approx(2 / 9)] * 2


def test_one_entry_no_headings_and_nothing_in_common():
    one = heading_share(pd.concat([rows({"a": ["health"]}), rows({"a": ["x"]}, "flat")])).iloc[0]
    assert one["difference_pp"] == 100 and one["interval"] == "not available: one entry" and math.isnan(one["low_pp"])
    none = heading_share(pd.concat([rows(ARM, "rag", headings=()), rows(FLAT, "flat")])).iloc[0]
    assert none["rate_naming"] == 0 and none["reason"] == "no heading was shown"
    apart = heading_share(pd.concat([rows({"a": ["health"]}), rows({"b": ["x"]}, "flat")])).iloc[0]
    assert apart["reason"] == "no entry is answered in both arms" and math.isnan(apart["rate_naming"])
    unknown = rows({"a": ["health"]}).assign(headings=None)
    old = heading_share(pd.concat([unknown, rows(FLAT, "flat")])).iloc[0]
    assert old["reason"] == "no answer whose headings are known"
    assert "nan" not in str(show(pd.DataFrame([apart])))
    assert not len(heading_share(pd.concat([rows(ARM), rows(FLAT, "flat")]).iloc[:0]))


def test_what_is_refused():
    good = pd.concat([rows(ARM), rows(FLAT, "flat")])
    for table, words in (
        (good.drop(columns="headings"), "do not say which headings"),
        (good.assign(headings=None), "do not say which headings"),
        (good.drop(columns="response"), "recorded results are stored without them"),
        (good.drop(columns="response").assign(model="simulated/m"), "simulated results have no answers"),
        (rows(ARM), "baseline must be one of"),
        (good.assign(headings="health"), "expected a JSON list"),
        (pd.concat([good, good]), "share their key"),
    ):
        with pytest.raises(InputError, match=words):
            heading_share(table)
    with pytest.raises(InputError, match="headings|no answers"):
        heading_share(read_results("recorded"))


def test_runs_say_what_was_shown():
    results = run(
        planted_entries(4), [planted_model({"flat": 0.5, "fixed": 0.5})], ["flat", "fixed"], judge=simulated_judge,
        store=":memory:", progress=False,
    )  # fmt: skip
    table = heading_share(results)
    assert set(table["arm"]) == {"fixed (embedding)"} and set(table["n_entries"]) == {4}
