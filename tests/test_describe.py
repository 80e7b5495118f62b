"""Descriptions of layouts: fills, shapes and lengths against counts made by hand."""

from __future__ import annotations

import pytest

import structmem as sm
from structmem.data import wrap_memories
from structmem.describe import count_tokens
from structmem.tree import UNCLASSIFIED

MEMORIES = wrap_memories(["a", "b", "c", "d", "e"])
FLAT = sm.Node(None, MEMORIES)
PARTITION = sm.Node(
    None,
    children=(
        sm.Node("health", MEMORIES[:2]),
        sm.Node("pets", MEMORIES[2:4]),
        sm.Node(UNCLASSIFIED, MEMORIES[4:]),
    ),
)
TREE = sm.Node(None, children=(sm.Node("health", MEMORIES[:1], (sm.Node("teeth", MEMORIES[1:]),)),))


def test_fill_counts_every_memory_once_and_keeps_empty_domains():
    fill = sm.domain_fill({"dynamic": [PARTITION, PARTITION], "tree": [TREE]}).set_index(["structure", "domain"])
    assert fill.loc[("dynamic", "health"), "memories"] == 4 and fill.loc[("dynamic", "health"), "sets"] == 2
    assert fill.loc[("dynamic", "(new domains)"), "memories"] == 4
    assert fill.loc[("dynamic", UNCLASSIFIED), "share"] == pytest.approx(0.2)
    assert fill.loc[("dynamic", "legal"), "memories"] == 0
    assert fill.loc[("tree", "health"), "memories"] == 5
    assert fill.groupby("structure")["memories"].sum().to_dict() == {"dynamic": 10, "tree": 5}


def test_shapes():
    shapes = sm.layout_shapes({"flat": [FLAT], "dynamic": [PARTITION, TREE]}).set_index("structure")
    assert shapes.loc["flat", ["groups_per_set", "leaves_per_set"]].tolist() == [0, 1]
    assert shapes.loc["dynamic", "groups_per_set"] == 2 and shapes.loc["dynamic", "leaves_per_set"] == 2.5
    assert shapes.loc["dynamic", ["sets_with_new", "sets_with_depth_2", "unclassified"]].tolist() == [1, 1, 1]


def test_tokens_added_is_the_difference_to_flat_under_the_same_renderer():
    table = sm.tokens_added({"flat": [FLAT], "fixed": [PARTITION]}, ["bullets", "xml"]).set_index(
        ["renderer", "structure"]
    )
    for renderer in ("bullets", "xml"):
        flat, fixed = count_tokens([sm.render(FLAT, renderer), sm.render(PARTITION, renderer)])
        assert table.loc[(renderer, "flat"), "tokens_added"] == 0
        assert table.loc[(renderer, "fixed"), "tokens_added"] == fixed - flat > 0
    assert sm.tokens_added({"fixed": [PARTITION]})["tokens_added"].isna().all()


def test_side_by_side_shows_texts_and_escapes_them():
    node = sm.Node(None, wrap_memories(["<img src=x onerror=alert(1)>"]))
    view = sm.SideBySide({"flat": node, "<b>": node}, "bullets")
    assert "=== flat ===" in repr(view)
    assert "<img" not in view._repr_html_() and "<b>" not in view._repr_html_()


def test_structure_all_equals_structuring_one_by_one():
    entries = sm.load_entries("examples", ["cross_domain"], limit=2)
    nodes = sm.structure_all(entries, ["flat", "tree"], store=":memory:")
    assert nodes["tree"] == [sm.structure(entry.memories, "tree") for entry in entries]


def test_retrieval_keeps_less_at_a_higher_threshold():
    kept = sm.retrieval_kept(sm.load_entries("examples", limit=2), [-1.0, 0.1, 1.0])
    assert kept["kept_pct"].tolist()[0] == 100 and kept["kept_pct"].is_monotonic_decreasing
    assert kept["empty_pct"].tolist()[-1] == 100


def test_nothing_to_describe_is_missing_and_no_error():
    empty = sm.Node(None)
    fill = sm.domain_fill({"fixed": [empty]})
    assert fill["memories"].sum() == 0 and fill["share"].isna().all()
    assert len(sm.hits({"flat": [FLAT]}, sm.load_entries("examples", ["cross_domain"], limit=1))) == 0
    bare = sm.Entry("x", (), "A query?")
    assert sm.retrieval_kept([bare], [0.1])["n_entries"].tolist() == [0]


def test_hits_are_given_in_shares_and_their_lift_in_pp():
    entries = sm.load_entries("examples", ["cross_domain"])
    row = sm.hits(sm.structure_all(entries, ["fixed"], store=":memory:"), entries).iloc[0]
    assert 0 <= row["chance"] <= 1 and row["lift_pp"] == pytest.approx(100 * (row["hit"] - row["chance"]))
