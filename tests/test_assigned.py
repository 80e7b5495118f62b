"""Who put which memory where: from layouts, and from partition files in the authors' shape."""

from __future__ import annotations

import json
from collections import Counter

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from structmem.assigned import assignments, check_assignments, read_partitions
from structmem.data import Entry
from structmem.errors import InputError
from structmem.tree import Node

TEXTS = ["User likes tea.", "User likes tea.", "Caf\u00e9", "Cafe\u0301", "User rents."]
ENTRY = Entry("e1", TEXTS, "What now?")
OTHER = Entry("e2", ["User owes 5.", "User sings."], "And now?")
BOTH = [ENTRY, OTHER]


def partition(entry: Entry, domains: list[str]) -> Node:
    names = dict.fromkeys(domains)
    held = {name: tuple(m for m, d in zip(entry.memories, domains, strict=True) if d == name) for name in names}
    return Node(None, children=tuple(Node(name, memories) for name, memories in held.items()))


def test_twins_keep_their_own_rows_and_the_top_level_counts():
    tree = Node(
        None, children=(Node("health", children=(Node("diet", ENTRY.memories[:2]),)), Node("home", ENTRY.memories[2:]))
    )
    table = assignments({"a": [tree], "b": [partition(ENTRY, ["x", "y", "x", "y", "unclassified"])]}, [ENTRY])
    assert list(table.columns) == ["entry_id", "position", "rater", "domain"]
    assert table[table["rater"] == "a"]["domain"].tolist() == ["health", "health", "home", "home", "home"]
    assert table[table["rater"] == "b"]["domain"].tolist() == ["x", "y", "x", "y", "unclassified"]
    assert table["position"].tolist() == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


@settings(max_examples=15, deadline=None)
@given(st.lists(st.sampled_from(["health", "social", "unclassified"]), min_size=5, max_size=5))
def test_every_memory_is_there_once_per_rater(domains):
    table = assignments({"a": [partition(ENTRY, domains)], "b": [partition(ENTRY, domains[::-1])]}, [ENTRY])
    assert table.sort_values(["rater", "position"])["position"].tolist() == [1, 2, 3, 4, 5] * 2
    assert table.loc[table["rater"] == "a", "domain"].tolist() == domains


def test_layouts_that_are_no_partition_of_the_entry_are_refused():
    whole = partition(ENTRY, ["x"] * 5)
    with pytest.raises(InputError, match="1 layouts for 2 entries"):
        assignments({"a": [whole]}, BOTH)
    with pytest.raises(InputError, match="there 2 times"):
        assignments({"a": [whole, whole]}, [ENTRY, ENTRY])
    with pytest.raises(InputError, match="without a domain"):
        assignments({"flat": [Node(None, ENTRY.memories)]}, [ENTRY])
    with pytest.raises(InputError, match="other memories"):
        assignments({"rag": [partition(OTHER, ["x", "x"])]}, [ENTRY])


def test_a_missing_domain_stays_visible_and_doubled_rows_are_refused():
    table = pd.DataFrame({"entry_id": ["e", "e"], "position": [1, 2], "rater": ["a", "a"], "domain": [None, ""]})
    assert check_assignments(table)["domain"].tolist() == ["(none)", "(none)"]
    for wrong, words in (
        (pd.concat([table, table]), "repeat a memory"),
        (table.assign(position=[0, 1]), "whole numbers"),
        (table.assign(rater=[None, "a"]), "rater is missing"),
        (table.drop(columns="rater"), "expected a table"),
        ("text", "expected a table"),
    ):
        with pytest.raises(InputError, match=words):
            check_assignments(wrong)


GOOD = {"Health": [TEXTS[0], TEXTS[2]], "social": [TEXTS[1], TEXTS[3], TEXTS[4]]}
SECOND = {"finance": ["User owes 5."], "Hobby": ["User sings."]}


def written(tmp_path, content) -> str:
    path = tmp_path / "theirs.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    "content",
    [
        [GOOD, SECOND],
        [SECOND, GOOD],
        {"e1": GOOD, "e2": SECOND},
        f"{json.dumps(GOOD)}\n{json.dumps(SECOND)}\n",
        f"{json.dumps({'entry_id': 'e2', 'partition': SECOND})}\n{json.dumps(GOOD)}\n",
    ],
    ids=["list", "list in another order", "by id", "lines", "lines with an id"],
)
def test_all_shapes_give_the_same_assignments(tmp_path, content):
    found = read_partitions(written(tmp_path, content), BOTH)
    table = found.assignments
    assert table["domain"].tolist() == ["health", "social", "health", "social", "social", "finance", "Hobby"]
    assert set(table["rater"]) == {"theirs"}
    assert found.report["n_placed"].tolist() == [5, 2] and not found.report["n_foreign"].any()
    assert "same text, taken in their order: memories 1, 2" in found.report["note"][0]


def test_partitions_of_other_entries_are_each_named(tmp_path):
    found = read_partitions(written(tmp_path, [GOOD, {"x": ["Nobody's."]}, {"y": ["No one's."]}]), BOTH[:1])
    assert found.report["entry_id"].tolist() == ["e1", *(f"theirs.json line 1 partition {k}" for k in (2, 3))]


def test_nothing_is_dropped_in_silence(tmp_path):
    odd = {"health": [TEXTS[0], "User flies."], "social": [TEXTS[1], TEXTS[2], TEXTS[0]], "legal": []}
    found = read_partitions(written(tmp_path, [odd, {"x": ["Nobody's text."]}]), BOTH, rater="r")
    assert found.assignments["domain"].tolist() == ["health", "social", "social", "unclassified", "unclassified"]
    first, second, third = found.report.to_dict("records")
    counts = ("n_memories", "n_placed", "n_unclassified", "n_foreign", "n_repeated")
    assert [first[name] for name in counts] == [5, 3, 2, 1, 1]
    assert (
        "memories 4, 5" in first["note"] and "'health' item 2" in first["note"] and "'social' item 3" in first["note"]
    )
    assert second["note"] == "no partition in the file" and second["n_placed"] == 0
    assert (
        len(found.report) == 3
        and third["note"] == "fits no entry: 1 texts in 1 domains"
        and third["entry_id"] == "theirs.json line 1 partition 2"
    )
    assert "Nobody" not in found.report.to_string()  # places, no text


@settings(max_examples=15, deadline=None)
@given(st.lists(st.sampled_from([*TEXTS, "Foreign.", "Strange."]), max_size=9), st.randoms())
def test_texts_are_conserved_whatever_the_partition_holds(texts, random):
    import tempfile
    from pathlib import Path

    domains = {name: [t for t in texts if random.random() < 0.5] for name in ("health", "social")}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "p.json"
        path.write_text(json.dumps({"e1": domains}), encoding="utf-8")
        found = read_partitions(path, [ENTRY])
    row = found.report.iloc[0]
    given = Counter(text for some in domains.values() for text in some)
    placed = (given & Counter(TEXTS)).total()
    assert (row["n_placed"], row["n_unclassified"]) == (placed, len(TEXTS) - placed)
    assert row["n_placed"] + row["n_foreign"] + row["n_repeated"] == given.total()
    assert len(found.assignments) == len(TEXTS)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[]", "holds no partitions"),
        ([["text"]], "list; expected an object"),
        ([{"health": "text"}], "'health' holds no list of texts"),
        ([{"health": [1]}], "'health' holds no list of texts"),
        ('{"health": ["a"], "health": ["b"]}', "given 2 times"),
        ('{"health": [NaN]}', "NaN"),
        ("{broken", "not JSON"),
        ('{"entry_id": "e1", "partition": {}}\n{"entry_id": "e1", "partition": {}}\n', "has 2 partitions"),
        ([{"x": ["Nobody's text."]}], "none of its 1 partitions fits"),
    ],
)
def test_files_of_another_shape_are_refused(tmp_path, content, words):
    with pytest.raises(InputError, match=words):
        read_partitions(written(tmp_path, content), BOTH)
