"""Positions of labelled memories: hand-worked layouts, what is left out and why, and how far layouts move them."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from structmem.data import Entry
from structmem.errors import InputError
from structmem.label_positions import gold_positions, position_shifts
from structmem.labels import memory_set
from structmem.tree import Node

HEALTH = "Health and Medical Information"
DOMAINS = {"a": "health", "b": "finance", "c": "health", "d": "personal", "e": "none"}


def entry(texts, name, domain=HEALTH):
    return Entry(name, tuple(texts), "What now?", "cross_domain", memory_domain=domain)


def label_file(tmp_path, entries, left_out=()):
    """A label file in which a text's label is its letter's."""
    lines = ["entry_id,memory_set,position,domain,acceptable,spans_domains"]
    for one in entries:
        texts = [memory.text for memory in one.memories]
        for position, text in enumerate(texts, start=1):
            if (one.entry_id, position) not in left_out:
                label = DOMAINS[text[0]]
                lines.append(f"{one.entry_id},{memory_set(texts)},{position},{label},{label};social,0")
    path = tmp_path / "labels.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def by_letter(one):
    """A partition: one child per letter, in the order of the alphabet."""
    letters = sorted({memory.text[0] for memory in one.memories})
    return Node(None, (), tuple(Node(x, tuple(m for m in one.memories if m.text[0] == x)) for x in letters))


def flat(one):
    return Node(None, one.memories)


def made(tmp_path, entries, left_out=()):
    nodes = {"flat": [flat(one) for one in entries], "fixed": [by_letter(one) for one in entries]}
    return gold_positions(nodes, entries, label_file(tmp_path, entries, left_out))


def test_positions_by_hand(tmp_path):
    # Flat: b1 d1 a1 c1 b2, health at the places 2 and 3 of 0 to 4. Sorted: a1 b1 b2 c1 d1, health at 0 and 3.
    table = made(tmp_path, [entry(["b1", "d1", "a1", "c1", "b2"], "one")]).set_index("structure")
    assert table.loc["flat", ["first_position", "mean_position", "first_moved", "mean_moved"]].tolist() == [
        2 / 4, 2.5 / 4, 0.0, 0.0
    ]  # fmt: skip
    fixed = table.loc["fixed"]
    assert (fixed["first_position"], fixed["mean_position"]) == (0.0, 1.5 / 4)
    assert (fixed["first_moved"], fixed["mean_moved"]) == (-2 / 4, -1 / 4)
    assert fixed["n_memories"] == 5 and fixed["n_labelled"] == 2 and fixed["remark"] == ""


def test_what_has_no_position_says_why(tmp_path):
    entries = [
        entry(["a1", "b1"], "whole"),
        entry(["a2", "b2"], "half"),
        entry(["b3", "d3"], "none of them"),
        entry(["a4", "b4"], "without", domain=None),
        entry(["a5"], "single"),
    ]
    table = made(tmp_path, entries, {("half", 2)}).query("structure == 'fixed'").set_index("entry_id")
    assert table["remark"].to_dict() == {
        "whole": "", "half": "not labelled in full", "none of them": "no memory is labelled as the memory_domain",
        "without": "no memory_domain", "single": "one memory in the context has no position",
    }  # fmt: skip
    assert table["mean_position"].notna().to_dict() == {name: name == "whole" for name in table.index}
    row = position_shifts(table.reset_index()).iloc[0]
    assert (row["n_entries"], row["n_left_out"]) == (1, 4) and row["interval"] == "not available: one entry"
    assert row["reasons"].count("1") == 4 and "not labelled in full 1" in row["reasons"]


def test_a_layout_that_drops_them_has_no_position(tmp_path):
    one = entry(["a1", "b1", "d1"], "one")
    nodes = {"flat": [flat(one)], "rag": [Node(None, one.memories[1:])]}
    table = gold_positions(nodes, [one], label_file(tmp_path, [one])).set_index("structure")
    assert table.loc["rag", "remark"] == "the layout drops every such memory" and table.loc["rag", "n_memories"] == 2
    assert math.isnan(table.loc["rag", "mean_moved"]) and table.loc["flat", "mean_position"] == 0.0


def test_shifts_are_a_t_interval_over_entries(tmp_path):
    texts = [["b1", "a1"], ["a2", "b2", "d2"], ["d3", "b3", "a3"], ["d4", "a4", "b4", "d5", "b5"]]
    table = made(tmp_path, [entry(list(words), f"e{i}") for i, words in enumerate(texts)])
    moved = [-1.0, 0.0, -1.0, -0.25]
    row = position_shifts(table).set_index("structure").loc["fixed"]
    expected = stats.ttest_1samp(moved, 0).confidence_interval(0.95)
    assert row["mean_moved"] == pytest.approx(np.mean(moved))
    assert (row["moved_low"], row["moved_high"]) == pytest.approx(tuple(expected))
    assert (row["n_up"], row["n_down"], row["interval"]) == (3, 0, "t over entries")


@given(st.lists(st.sampled_from("abcd"), min_size=2, max_size=9), st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_positions_lie_in_0_to_1_and_a_mirror_turns_them_over(tmp_path_factory, letters, rng):
    one = entry([f"{letter}{i}" for i, letter in enumerate(letters)], "one")
    shuffled = rng.sample(list(one.memories), len(one.memories))
    nodes = {"flat": [flat(one)], "there": [Node(None, tuple(shuffled))], "back": [Node(None, tuple(shuffled[::-1]))]}
    table = gold_positions(nodes, [one], label_file(tmp_path_factory.mktemp("labels"), [one])).set_index("structure")
    positions = table[["first_position", "mean_position"]].dropna()
    assert positions.ge(0).all(axis=None) and positions.le(1).all(axis=None)
    if len(positions):
        assert table.loc["there", "mean_position"] + table.loc["back", "mean_position"] == pytest.approx(1)


def test_refusals(tmp_path):
    one = entry(["a1", "b1"], "one")
    path = label_file(tmp_path, [one])
    with pytest.raises(InputError, match="flat has 2 layouts for 1 entries"):
        gold_positions({"flat": [flat(one)] * 2}, [one], path)
    with pytest.raises(InputError, match="memory_domain must be one of .*got 'Weather'"):
        gold_positions({"flat": [flat(one)]}, [entry(["a1", "b1"], "one", "Weather")], path)
    with pytest.raises(InputError, match="labels must be one of"):
        gold_positions({"flat": [flat(one)]}, [one], "nowhere.csv")
    with pytest.raises(InputError, match="positions lack the columns"):
        position_shifts(pd.DataFrame({"entry_id": []}))
    empty = gold_positions({"flat": []}, [], path)
    assert len(empty) == 0 and len(position_shifts(empty)) == 0
