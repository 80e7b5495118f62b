"""run_each: several settings in one table, what they share asked once, and what cannot be told apart refused."""

import json

import pytest
from test_experiment import ENTRIES, go, model, scoring

from structmem.errors import InputError, MissingCall
from structmem.llm import Client
from structmem.results import merge_results
from structmem.variants import run_each

RAG = {f"k = {k}": {"structurer_options": {"rag": {"threshold": None, "top_k": k}}} for k in (1, 2)}


def each(variants, entries=ENTRIES[:1], **settings):
    grid = {"models": [model()], "structures": ["flat", "rag"], "judge": scoring(), "store": ":memory:", "aa": False}
    return run_each(entries, variants, **grid | settings)


def test_each_variant_has_its_rows_and_the_baseline_stands_once():
    asked = model()
    df = each(RAG, models=[asked])
    rag = df[df["structure"] == "rag"]
    assert sorted({json.loads(options)["top_k"] for options in rag["structurer_options"]}) == [1, 2]
    assert df.groupby(["structure", "structurer_options"]).size().tolist() == [3, 3, 3]
    assert len(asked.seen) == 9 == df.attrs["calls"]["made"]["answer"]
    assert len(df.attrs["parameters"]) == 2 and "stopped" not in df.attrs


def test_it_is_what_two_runs_and_a_merge_give():
    with Client(":memory:") as client:
        settings = {"structures": ["flat", "rag"], "aa": False, "client": client, "store": None}
        one, two = (go(**settings, **variant) for variant in RAG.values())
        joined = each(RAG, client=client)
        spare = ["run_id", "called_at", "latency_s"]
        left, right = (df.drop(columns=spare) for df in (merge_results(one, two), joined))
        assert left.equals(right)


def test_variants_that_ask_the_same_are_one():
    asked = model()
    df = each({"a": {}, "b": {}, "c": {"structures": ["flat"]}}, models=[asked])
    assert len(df) == 6 == len(asked.seen)


def test_a_variant_may_differ_in_any_setting_of_an_arm():
    df = each({"a": {"structures": ["flat"]}, "b": {"structures": ["fixed"], "renderers": ["xml"]}})
    assert set(zip(df["structure"], df["renderer"], strict=True)) == {("flat", "markdown"), ("fixed", "xml")}


@pytest.mark.parametrize(
    ("variants", "words"),
    [
        ({}, "variants must be a mapping of names to settings of run, at least one"),
        ([{}], "variants must be a mapping"),
        ({"a": 3}, "variant 'a' must be a mapping"),
        ({"a": {"store": "x"}}, "variant 'a' sets 'store', which all variants share"),
        ({"a": {"entries": []}}, "variant 'a' sets 'entries'"),
        ({"a": {"structure": ["flat"]}}, r"a setting of run must be one of \["),
        ({"a": {}, "b": {"renderers": ["html"]}}, "variant 'b': renderer must be one of"),
    ],
)
def test_bad_variants_are_refused_before_any_call(variants, words):
    asked = model()
    with pytest.raises(InputError, match=words):
        each(variants, models=[asked])
    assert not asked.seen


def test_settings_that_rows_are_not_told_apart_by_are_refused():
    with pytest.raises(InputError, match="variant 'warm' cannot be told apart from one before it"):
        each({"cold": {"temperature": 0.5}, "warm": {"temperature": 0.9}}, models=[model(lambda request: "A" + "?")])


def test_a_variant_that_did_not_finish_says_so_and_offline_names_what_is_missing():
    df = each(RAG)
    assert df["status"].eq("ok").all()
    with pytest.raises(MissingCall):
        each(RAG, offline=True)
