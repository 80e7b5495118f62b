"""Judging stored answers again: no new answers, new calls only for a repeat, the store, the budget, what is refused."""

from __future__ import annotations

import json
import threading

import pandas as pd
import pytest

from structmem.agreement import judge_agreement
from structmem.columns import KEY
from structmem.data import Entry, Memory
from structmem.errors import InputError, MissingCall
from structmem.experiment import run
from structmem.llm import Client
from structmem.rejudging import rejudge
from structmem.results import read_results, write_results
from structmem.simulate import planted_entries, planted_model, simulated_judge

ENTRIES = planted_entries(6)
SETTINGS = {"store": ":memory:", "progress": False}


def judge_file(folder):
    path = folder / "mine.yaml"
    own = {"name": "mine", "system": "Score it. Reply in JSON.", "scale": [0, 10], "score_field": "leak"}
    path.write_text(json.dumps(own | {"high_is_bad": True, "threshold": 6}), encoding="utf-8")
    return path


def judge_model(score=lambda request: 2 + request.replicate):
    """A judge model that counts what it is asked."""

    def model(messages, request):
        with lock:
            model.asked.append((messages[-1]["content"], request))
        return json.dumps({"reasoning": "simulated", "leak": score(request)})

    lock, model.asked, model.model_id = threading.Lock(), [], "simulated/judge-1"
    return model


@pytest.fixture(scope="module")
def answers():
    model = planted_model({"flat": 0.5, "dynamic": 0.2})
    return run(ENTRIES, [model], ["flat", "dynamic"], judge=simulated_judge, **SETTINGS)


def test_a_second_judge_reads_the_same_answers(answers, tmp_path):
    model = judge_model()
    table = rejudge(answers, ENTRIES, judge_file(tmp_path), model, **SETTINGS)
    same = [name for name in answers if not name.startswith("judge") and name not in (
        "score", "status", "threshold", "scale_low", "scale_high", "run_id", "escaped")]  # fmt: skip
    pd.testing.assert_frame_equal(table[same], answers[same])
    assert set(table["judge"]) == {"mine"} and set(table["judge_model"]) == {"simulated/judge-1"}
    assert (table["score"] == 2).all() and (table["status"] == "ok").all() and table["judge_key"].notna().all()
    scale = table[["scale_low", "scale_high", "threshold", "high_is_bad"]].drop_duplicates().values.tolist()
    assert scale == [[0, 10, 6.0, True]]
    shown = {text for text, _ in model.asked}
    assert all(any(answer in text for text in shown) for answer in answers["response"])
    # One call for each different answer to an entry, whichever rows hold it.
    assert len(model.asked) == len(answers[["entry_id", "response"]].drop_duplicates())
    assert not set(table["run_id"]) & set(answers["run_id"])


def test_judging_again_as_run_did_costs_nothing_and_a_repeat_is_a_new_call(tmp_path):
    model, path, client = judge_model(), judge_file(tmp_path), Client(":memory:", announce=None)
    answering = planted_model({"flat": 0.5})
    first = run(ENTRIES, [answering], ["flat"], judge=path, judge_model=model, client=client, progress=False)
    asked = len(model.asked)
    again = rejudge(first, ENTRIES, path, model, client=client)
    assert len(model.asked) == asked
    pd.testing.assert_frame_equal(again.drop(columns="run_id"), first.drop(columns="run_id"))
    repeat = rejudge(first, ENTRIES, path, model, client=client, repeat=1)
    assert len(model.asked) == 2 * asked and {request.replicate for _, request in model.asked} == {0, 1}
    assert set(repeat["judge"]) == {"mine (repeat 1)"} and (repeat["score"] == 3).all()
    assert not set(repeat["judge_key"]) & set(first["judge_key"])
    twice = rejudge(first, ENTRIES, path, model, client=client, repeat=1)
    assert len(model.asked) == 2 * asked
    pd.testing.assert_frame_equal(twice, repeat)
    raw = judge_agreement(first, repeat).set_index(["of", "measure"])["coefficient"]
    assert raw["score", "raw agreement"] == 0 and raw["fail or pass", "raw agreement"] == 1


def test_an_interrupted_rejudging_goes_on_from_the_store(answers, tmp_path):
    path, store = judge_file(tmp_path), tmp_path / "store.sqlite"
    some = answers[answers["entry_id"].isin([entry.entry_id for entry in ENTRIES[:3]])]
    model = judge_model()
    rejudge(some, ENTRIES, path, model, store=store)
    before = len(model.asked)
    with pytest.raises(MissingCall):
        rejudge(answers, ENTRIES, path, model, store=store, offline=True)
    table = rejudge(answers, ENTRIES, path, model, store=store)
    assert len(model.asked) - before == len(answers[["entry_id", "response"]].drop_duplicates()) - before
    offline = rejudge(answers, ENTRIES, path, model, store=store, offline=True)
    pd.testing.assert_frame_equal(offline, table)


def test_judge_functions_and_the_echo_measure(answers, tmp_path):
    same = rejudge(answers, ENTRIES, simulated_judge, **SETTINGS)
    pd.testing.assert_frame_equal(same.drop(columns="run_id"), answers.drop(columns="run_id"))

    def broken(entry, response):
        raise ValueError("no idea")

    broken.judge_id = "broken-1"
    lost = rejudge(answers.head(40), ENTRIES, broken, **SETTINGS)
    assert set(lost["status"]) == {"no_verdict"} and lost["score"].isna().all()
    assert lost["status_detail"].str.contains("no idea").all()
    echo = rejudge(answers, ENTRIES, "echo", **SETTINGS)
    quoted = answers["score"] == 4
    assert (echo["echoed"] == quoted).all() and echo["score"].isna().all() and (echo["threshold"] == 0.5).all()
    assert echo["scale_low"].isna().all()
    written = read_results(write_results(echo, tmp_path / "echo.parquet"))
    assert len(written) == len(answers) and not written.duplicated(list(KEY)).any()


def test_rows_without_an_answer_keep_their_reason(answers, tmp_path):
    table = answers.copy()
    gone = table.index[:4]
    table.loc[gone, ["status", "status_reason", "status_detail"]] = ["no_response", "refused", "said no"]
    table.loc[gone, ["response", "score"]] = None
    table.loc[table.index[4], ["status", "status_reason", "score"]] = ["no_verdict", "no_json", None]
    model = judge_model()
    found = rejudge(table, ENTRIES, judge_file(tmp_path), model, **SETTINGS)
    left = found.loc[gone, ["status", "status_reason", "status_detail"]].drop_duplicates().values.tolist()
    assert left == [["no_response", "refused", "said no"]] and found.loc[gone, "score"].isna().all()
    assert (found["status"] == "ok").sum() == len(table) - 4  # what the first judge lost is asked of the second


def test_a_dead_judge_ends_the_work_and_says_so(tmp_path):
    entries = planted_entries(80)
    rows = run(entries, [planted_model({"flat": 0.5})], ["flat"], judge=simulated_judge, **SETTINGS, aa=False)

    def dead(entry, response):
        raise RuntimeError("out of order")

    dead.judge_id = "dead-1"
    with pytest.warns(UserWarning, match="not judged: 50 rows on end without a verdict"):
        found = rejudge(rows, entries, dead, judge_concurrency=4, **SETTINGS)
    assert "out of order" in found.attrs["stopped"] and (found["status_reason"] == "not_asked").any()


def test_what_is_refused(answers, tmp_path):
    other = [Entry(e.entry_id, e.memories, e.query, "sycophancy") for e in ENTRIES]
    for change, words in (
        ({"results": answers.drop(columns="response")}, "hold no text in 'response'"),
        ({"results": answers.assign(response=None)}, "hold no text in 'response'"),
        ({"entries": ENTRIES[:2]}, "entries lack 4 of the 6"),
        ({"entries": other}, "its results say 'cross_domain'"),
        ({"judge": "echo", "repeat": 1}, "nothing to repeat"),
        ({"repeat": -1}, "repeat must be a whole number"),
        ({"threshold": 9}, "threshold must lie in"),
        ({"judge": "nobody"}, "judge must be one of"),
        ({"results": pd.concat([answers, answers.assign(judge="two")])}, "several judges"),
    ):
        given = {"results": answers, "entries": ENTRIES, "judge": simulated_judge} | change
        with pytest.raises(InputError, match=words):
            rejudge(given.pop("results"), given.pop("entries"), given.pop("judge"), **given, **SETTINGS)


def test_simulated_results_hold_no_answers(answers):
    with pytest.raises(InputError, match="simulated results have no answers"):
        rejudge(answers.assign(response=None, model="simulated/m"), ENTRIES, judge="echo")


def test_recorded_results_hold_no_answers():
    table = read_results("recorded")
    with pytest.raises(InputError, match="recorded results are stored without them"):
        rejudge(
            table, [Entry(e, ("x",), "y", k) for e, k in zip(table["entry_id"], table["failure_type"], strict=True)]
        )


def test_entries_with_other_memories_under_the_same_ids_are_refused(answers):
    changed = [Entry(e.entry_id, (*e.memories, Memory("new", "Keeps bees.")), e.query, e.failure_type) for e in ENTRIES]
    with pytest.raises(InputError, match="another number of memories"):
        rejudge(answers, changed, judge="echo")
    with pytest.raises(InputError, match="echo_threshold"):
        rejudge(answers, ENTRIES, judge="echo", echo_threshold="a")
    for none in (None, "abc", [3]):
        with pytest.raises(InputError, match="entries must be"):
            rejudge(answers, none, judge="echo")
