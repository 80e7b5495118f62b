"""Costs against hand-worked arithmetic and prompts counted by themselves."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_stats import arm, frames

from structmem import figures, prices, timing
from structmem.cost_words import cost_reading
from structmem.costs import MODEL, measured_costs, token_costs
from structmem.data import Entry, load_entries
from structmem.describe import count_tokens
from structmem.errors import InputError
from structmem.house import save
from structmem.payback import _first_below, _met, break_even, paid_back, price_table, spent_by_queries
from structmem.prefixes import cache_prices, prefix_kept
from structmem.renderers import render
from structmem.structurers import _lines, prompt
from structmem.structures import structure
from structmem.taxonomy import load_taxonomy
from structmem.timing import wall_times

MEMORIES = [
    "The user has a peanut allergy.",
    "The user takes a tablet for blood pressure.",
    "The user is married to Robin.",
    "The user owes 4,000 euros on a credit card.",
]
ENTRY = Entry("e", MEMORIES, "Which tablet did I take for blood pressure?")


def row_of(table, name, who=""):
    (row,) = table[(table["structure"] == name) & (table["structurer"] == who)].to_dict("records")
    return row


@pytest.fixture(scope="module")
def counted():
    return token_costs([ENTRY])


# --- tokens ----------------------------------------------------------------------------------------------------------


def test_fixed_is_the_classifiers_prompt_and_a_right_reply(counted):
    row, taxonomy = row_of(counted, "fixed", MODEL), load_taxonomy()
    system = prompt("classifier", domains=_lines(taxonomy))
    user = "Memories:\n" + "\n".join(f"{k}. {json.dumps(text)}" for k, text in enumerate(MEMORIES, 1))
    domains = {m.id: part.label for part in structure(MEMORIES, "fixed").children for m in part.memories}
    reply = json.dumps({"assignments": {str(k): domains[str(k)] for k in range(1, 5)}})
    assert (row["once_calls"], row["query_calls"]) == (1, 0)
    assert row["once_input_tokens"] == count_tokens([f"{system}\n{user}"])[0]
    assert row["once_output_tokens"] == count_tokens([reply])[0]
    one = f"{system}\nMemories:\n1. {json.dumps(MEMORIES[-1])}"
    assert row["add_input_tokens"] == count_tokens([one])[0]
    assert row["add_output_tokens"] == count_tokens([json.dumps({"assignments": {"1": domains["4"]}})])[0]


def test_contexts_are_the_rendered_layouts(counted):
    for name in ("flat", "fixed", "tree"):
        row = row_of(counted, name, "" if name == "flat" else "embedding")
        assert row["context_tokens"] == count_tokens([render(structure(MEMORIES, name), "markdown")])[0]
        assert (row["once_input_tokens"], row["add_output_tokens"], row["query_calls"]) == (0, 0, 0)
    flat, rag = row_of(counted, "flat"), row_of(counted, "rag", "embedding")
    kept = structure(MEMORIES, "rag", query=ENTRY.query)
    assert rag["context_added_tokens"] == count_tokens([render(kept)])[0] - flat["context_tokens"] < 0
    assert flat["prompt_tokens"] - flat["context_tokens"] == pytest.approx(
        rag["prompt_tokens"] - rag["context_tokens"], 2
    )


def test_who_asks_when(counted):
    calls = {(r["structure"], r["structurer"]): (r["once_calls"], r["query_calls"]) for r in counted.to_dict("records")}
    assert calls == {
        ("flat", ""): (0, 0), ("rag", "embedding"): (0, 0), ("self_check", MODEL): (0, 1),
        ("gated", "embedding"): (0, 0), ("gated", MODEL): (1, 1),
        **{(name, "embedding"): (0, 0) for name in ("fixed", "dynamic", "tree")},
        **{(name, MODEL): (1, 0) for name in ("fixed", "dynamic")}, ("tree", MODEL): (2, 0),
    }  # fmt: skip
    check = row_of(counted, "self_check", MODEL)
    assert check["context_tokens"] == row_of(counted, "rag", "embedding")["context_tokens"]
    assert (
        check["query_output_tokens"] == count_tokens([json.dumps({"memories": [2]})])[0] or check["query_output_tokens"]
    )


def test_means_over_sets_and_sets_without_memories():
    other = Entry("f", MEMORIES[:2], "A query?")
    both = row_of(token_costs([ENTRY, other, Entry("g", (), "q")], ["fixed"]), "fixed", MODEL)
    alone = [row_of(token_costs([e], ["fixed"]), "fixed", MODEL) for e in (ENTRY, other)]
    assert both["n_sets"] == 2
    for name in ("once_input_tokens", "add_input_tokens", "context_added_tokens"):
        assert both[name] == pytest.approx((alone[0][name] + alone[1][name]) / 2)


@pytest.mark.parametrize("entry", load_entries("persistbench", ["cross_domain"], limit=3))
def test_no_stand_in_is_asked_twice(entry):
    """A reply that could not be used would be asked for again, and counted twice."""
    table = token_costs([entry], ["fixed", "tree", "gated", "self_check"])
    by_model = table[table["structurer"] == MODEL].set_index("structure")
    assert by_model["once_calls"].to_dict() == {"fixed": 1, "tree": 2, "gated": 1, "self_check": 0}
    assert by_model["query_calls"].to_dict() == {"fixed": 0, "tree": 0, "gated": 1, "self_check": 1}


def test_token_costs_refuse_what_they_cannot_count():
    with pytest.raises(InputError, match="no entry has memories"):
        token_costs([Entry("g", (), "q")])
    with pytest.raises(InputError, match="structure must be one of"):
        token_costs([ENTRY], ["shuffled"])
    with pytest.raises(InputError, match="answer_tokens must be"):
        token_costs([ENTRY], answer_tokens=0)


def test_measured_tokens_count_a_sorting_once():
    base = {"taxonomy": "", "structurer_options": "", "structurer_key": "", "structurer_input_tokens": pd.NA,
            "structurer_output_tokens": pd.NA, "answer_output_tokens": 10, "answer_cached_tokens": pd.NA}  # fmt: skip
    flat = arm([0, 0]).assign(**base, answer_input_tokens=[100, 120])
    fixed = arm([0] * 4, structure="fixed", structurer="a/model").assign(
        **base | {"structurer_key": ["k", "k", "l", "l"], "structurer_input_tokens": [50, 50, 70, 70]}
        | {"structurer_output_tokens": [5, 5, 9, 9], "answer_cached_tokens": [50, 50, 50, 0]},
        answer_input_tokens=[100, 100, 100, pd.NA],
    )  # fmt: skip
    by_embedding = arm([0], structure="tree", structurer="embedding").assign(**base, answer_input_tokens=pd.NA)
    table = measured_costs(frames(flat, fixed, by_embedding)).set_index("structure")
    assert table.loc["fixed", ["n_sortings", "once_input_tokens", "once_output_tokens"]].tolist() == [2, 60, 7]
    assert table.loc["fixed", ["n_answers", "answer_input_tokens", "cached_share"]].tolist() == [3, 100, 0.5]
    assert table.loc["flat", ["answer_input_tokens", "once_input_tokens"]].tolist() == [110, 0]
    assert table.loc["flat", "reason"] == "cached tokens are not told"
    assert math.isnan(table.loc["tree", "answer_input_tokens"]) and "no answer has known" in table.loc["tree", "reason"]
    unknown = fixed.assign(structurer_input_tokens=pd.NA)
    assert math.isnan(measured_costs(unknown)["once_input_tokens"].iloc[0])
    with pytest.raises(InputError, match="structurer_key"):
        measured_costs(flat.drop(columns="structurer_key"))


# --- paid back -------------------------------------------------------------------------------------------------------


def costs_of(*rows):
    """structure, structurer, once in, once out, query in, query out, prompt; answers of 100 tokens."""
    names = ["structure", "structurer", "once_input_tokens", "once_output_tokens", "query_input_tokens",
             "query_output_tokens", "prompt_tokens"]  # fmt: skip
    table = pd.DataFrame(rows, columns=names).assign(answer_tokens=100.0, n_sets=1)
    return table.assign(add_input_tokens=30.0, add_output_tokens=3.0)


BY_HAND = costs_of(
    ("flat", "", 0, 0, 0, 0, 300),  # 400 an answer
    ("fixed", MODEL, 900, 60, 0, 0, 320),  # 960 once, 420 an answer
    ("rag", "embedding", 0, 0, 0, 0, 200),  # 300
    ("self_check", MODEL, 0, 0, 350, 10, 200),  # 660
)


def test_paid_back_by_hand():
    table = paid_back(BY_HAND).set_index("structure")
    # 960 < 42 N from 23 on (22.86); 960 < 4.2 N from 229 on (228.6)
    assert table.loc["fixed", ["once", "per_answer", "queries_to_10_pct", "queries_to_1_pct"]].tolist() == [
        960,
        420,
        23,
        229,
    ]
    assert table.loc["flat", ["once", "queries_to_10_pct"]].tolist() == [0, 0]
    # in dollars at 1 per input and 4 per output token: once 900 + 240, an answer 320 + 400
    priced = paid_back(BY_HAND, "x/y", {"x/y": (1, 4)}).set_index("structure")
    assert priced.loc["fixed", ["once", "per_answer", "queries_to_10_pct"]].tolist() == [1140, 720, 16]
    assert priced.loc["self_check", "per_answer"] == 550 + 110 * 4
    unknown = paid_back(BY_HAND, "no/such")
    assert unknown["queries_to_10_pct"].isna().all() and set(unknown["reason"]) == {"no known price of no/such"}


@given(st.integers(1, 10_000), st.integers(1, 5_000), st.sampled_from([1, 10]))
def test_the_first_query_below_a_share(once, each, pct):
    n = _first_below(float(once), float(each), pct)
    assert 100 * once < pct * each * n and (n == 1 or 100 * once >= pct * each * (n - 1))


@given(st.integers(-2_000, 2_000), st.integers(-500, 500))
def test_break_even_is_the_first_query_that_holds_for_ever(once, each):
    n, words = _met(float(once), float(each))
    holds = [once + each * k <= 0 for k in range(4_100)]
    if math.isnan(n):
        assert not holds[-1] and words.startswith("never")
    elif n == 0:
        assert all(holds)
    else:
        assert all(holds[int(n) :]) and not holds[int(n) - 1]


def test_break_even_by_hand():
    table = break_even(BY_HAND).set_index(["structure", "against"])
    never = table.loc[("fixed", "flat")]
    assert math.isnan(never["break_even_queries"]) and never["per_answer_more"] == 20
    assert never["reading"] == "never: it costs more for every answer"
    # against self_check: 960 once, 240 less an answer
    assert table.loc[("fixed", "self_check"), ["break_even_queries", "reading"]].tolist() == [4, "from query 4 on"]
    assert table.loc[("rag", "flat"), "reading"] == "costs less from the start"
    other = break_even(costs_of(("flat", "", 0, 0, 0, 0, 300), ("gated", MODEL, 50, 0, 0, 0, 300)))
    readings = dict(zip(other["structure"], other["reading"], strict=True))
    assert readings["gated"] == "never: it saves nothing on every answer"
    assert set(break_even(BY_HAND, "no/such")["reading"]) == {"no known price of no/such"}


def test_spent_by_queries_by_hand():
    table = spent_by_queries(BY_HAND, [1, 10])
    fixed = table[table["structure"] == "fixed"]
    assert fixed["tokens"].tolist() == [1380, 5160] and fixed["ratio"].tolist() == [1380 / 400, 5160 / 4000]


def test_price_table_by_hand():
    table = price_table(["x/y", "no/such", "local/smollm2"], BY_HAND, prices={"x/y": (1e-6, 4e-6, 1e-7)}).set_index(
        "model"
    )
    mine = table.loc["x/y"]
    assert (mine["input_per_million"], mine["cached_per_million"], mine["output_per_million"]) == pytest.approx(
        (1, 0.1, 4)
    )
    assert mine["sort_one_set"] == pytest.approx((900 + 240) / 1e6)
    assert mine["add_one_memory"] == pytest.approx((30 + 12) / 1e6)
    assert mine["answers_flat"] == pytest.approx(1000 * 700 / 1e6)
    assert mine["answers_structure"] == pytest.approx(1000 * 720 / 1e6) and mine["reason"] == ""
    unknown = table.loc["no/such"]
    assert unknown[["input_per_million", "sort_one_set", "answers_flat"]].isna().all()
    assert unknown["reason"] == "no known price"
    assert table.loc["local/smollm2", "answers_flat"] == 0 and "own machine" in table.loc["local/smollm2", "reason"]
    no_cache = price_table("x/y", BY_HAND, prices={"x/y": (1e-6, 4e-6)})
    assert no_cache["reason"].tolist() == ["no known price of cached input"]
    with pytest.raises(InputError, match="costs lack the row"):
        price_table("x/y", BY_HAND, "tree")
    with pytest.raises(InputError, match="no column 'prompt_tokens'"):
        paid_back(BY_HAND.drop(columns="prompt_tokens"))


def test_a_listed_model_has_the_maps_price():
    known = prices.price("openai/gpt-4o-mini")
    (row,) = price_table(["openai/gpt-4o-mini"], BY_HAND).to_dict("records")
    assert row["input_per_million"] == pytest.approx(1e6 * known.input) and row["cached_per_million"] > 0


# --- prompt caches ---------------------------------------------------------------------------------------------------


def test_flat_appends_and_a_partition_moves_what_follows():
    kept = prefix_kept([ENTRY], ["flat", "fixed"], placements=["system"]).set_index("structure")
    assert (kept["n_additions"] == 4).all() and (kept["n_sets"] == 1).all()

    def by_hand(name):
        shares = []
        for k in range(4):
            rest = [m for i, m in enumerate(ENTRY.memories) if i != k]
            before = str(render(structure(rest, name)))
            after = str(render(structure([*rest, ENTRY.memories[k]], name)))
            same = next(i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b)
            shares.append(count_tokens([before[:same]])[0] / count_tokens([before])[0])
        return np.mean(shares)

    for name in ("flat", "fixed"):
        assert kept.loc[name, "context_kept_share"] == pytest.approx(by_hand(name), abs=0.03)
    assert kept.loc["flat", "context_kept_share"] > 0.9 > kept.loc["fixed", "context_kept_share"]
    assert (kept["prompt_kept_share"] < kept["unchanged_share"]).all()


def test_cached_prices_by_hand():
    kept = pd.DataFrame(
        [{"structure": "flat", "structurer": "", "renderer": "markdown", "placement": "system", "prompt_tokens": 100.0}
         | {"unchanged_share": 0.8, "prompt_kept_share": 0.5}]
    )  # fmt: skip
    own = {"x/y": (2e-6, 1e-6, 1e-6), "x/z": (2e-6, 1e-6)}
    priced, no_cache, unknown = cache_prices(kept, ["x/y", "x/z", "no/such"], own).to_dict("records")
    # 100,000 input tokens: 0.2; of 80 % cached: 0.08 + 0.04; of 50 %: 0.05 + 0.1
    assert (priced["no_cache"], priced["unchanged"], priced["after_addition"]) == pytest.approx((0.2, 0.12, 0.15))
    assert priced["invalidated"] == pytest.approx(0.03)
    assert no_cache["no_cache"] == pytest.approx(0.2) and math.isnan(no_cache["unchanged"])
    assert no_cache["reason"] == "no known price of cached input"
    assert math.isnan(unknown["no_cache"]) and unknown["reason"] == "no known price"


def test_prefixes_refuse():
    with pytest.raises(InputError, match="no entry has two memories"):
        prefix_kept([Entry("a", MEMORIES[:1], "q")])
    with pytest.raises(InputError, match="to which a memory can be added"):
        prefix_kept([ENTRY], ["rag"])


# --- wall times ------------------------------------------------------------------------------------------------------


def test_wall_times_are_measured_and_recorded(tmp_path, monkeypatch):
    table = wall_times(True, sizes=(2, 3), repeats=2, latency_s=0.01, machine="busy")
    assert len(table) == 2 * 3 * 2 * 2 and (table["p50_s"] > 0).all() and (table["p95_s"] >= table["p50_s"]).all()
    simulated = table[table["structurer"] == "simulated, 0.01 s a call"]
    assert (simulated["p50_s"] >= 0.01).all()
    trees = simulated[(simulated["structure"] == "tree") & (simulated["task"] == "sort the set")]
    assert (trees["p50_s"] >= 0.02).all()  # it is asked twice, one call after the other
    timing.record_wall_times(tmp_path / timing.RECORDED, table)
    monkeypatch.setattr(timing, "recorded", lambda: tmp_path)
    read = wall_times()
    assert list(read) == list(table) and len(read) == len(table) and set(read["machine"]) == {"busy"}
    with pytest.raises(InputError, match="whole numbers"):
        wall_times(True, sizes=(0,))
    with pytest.raises(InputError, match="sizes must be below"):
        wall_times(True, sizes=(10**6,))


def test_the_committed_times_name_no_machine():
    table = wall_times()
    assert set(table["n_memories"]) == set(timing.SIZES) and {"cores", "python", "machine"} <= set(table)
    assert not {"host", "hostname", "path"} & set(table)


# --- words and figures -----------------------------------------------------------------------------------------------


def test_the_reading_follows_from_the_numbers(counted, capsys):
    cost_reading(counted, prefix_kept([ENTRY], ["flat", "fixed"], placements=["system"]))
    said = capsys.readouterr().out
    once = {
        r["structure"]: r["once_input_tokens"] + r["once_output_tokens"]
        for r in counted.to_dict("records")
        if r["structurer"] == MODEL
    }
    assert f"fixed {once['fixed']:,.0f}, dynamic {once['dynamic']:,.0f}, tree {once['tree']:,.0f}" in said
    assert "never pay back against it" in said and "rag by embedding: " in said
    assert "unchanged beginning: flat 9" in said and "below 1,024" in said
    cheap = costs_of(("flat", "", 0, 0, 0, 0, 300), ("fixed", "embedding", 0, 0, 0, 0, 290))
    cost_reading(cheap)
    said = capsys.readouterr().out
    assert "never pay back" not in said and "by -10 to -10 tokens" in said and "takes once" not in said


def test_figures_show_the_tables(counted, tmp_path):
    spent = spent_by_queries(counted)
    for width in ("page", "column"):
        axes = figures.spent_by_queries(spent, width)
        lines = [line for line in axes.get_lines() if len(line.get_xdata()) == 10]
        assert len(lines) == len(counted) - 1
        fixed = spent[(spent["structure"] == "fixed") & (spent["structurer"] == MODEL)]
        assert any(np.allclose(line.get_ydata(), fixed["ratio"]) for line in lines)
    assert "After 1,000 queries: fixed by embedding" in save(axes, "spent", spent, tmp_path).alt
    kept = prefix_kept([ENTRY], ["flat", "fixed"])
    axes = figures.prefix_kept(kept)
    points = {float(line.get_xdata()[0]) for line in axes.get_lines() if len(line.get_xdata()) == 1}
    assert {100 * share for share in kept["context_kept_share"]} <= points
    assert "of the context" in axes.figure.alt_text
    with pytest.raises(InputError, match="no rows"):
        figures.spent_by_queries(spent.iloc[:0])
