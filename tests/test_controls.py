"""Controls: each keeps every memory and changes exactly the one thing that it is for."""

from __future__ import annotations

import json
import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from structmem import controls
from structmem.data import wrap_memories
from structmem.errors import InputError
from structmem.labels import memory_set
from structmem.renderers import parse_context, render
from structmem.structures import STRUCTURES, spec, structure
from structmem.taxonomy import Domain, Taxonomy, load_taxonomy
from structmem.tree import UNCLASSIFIED, Node

ABC = Taxonomy("abc", tuple(Domain(name, f"About {name}.") for name in ("apples", "boats", "cats", "drums")))
CONTROLS = ("reordered", "one_group", "unlabelled", "shuffled", "random", "relabelled", "tree_top", "tree_leaves")
DRAWN = ("shuffled", "random", "relabelled")


def by_first_letters(messages, **_):
    """A model that sorts a text by its first letters: a domain's initial, a second letter for a leaf, ? for nothing."""
    system, user = messages[0]["content"], messages[-1]["content"]
    if "You plan subdomains" in system:
        return json.dumps({"domains": {name: ["early", "late"] for name in ABC.names[:3]}})
    texts = {k: json.loads(text) for k, text in re.findall(r"^(\d+)\. (.*)$", user, re.M)}
    names = {name[0]: name for name in ABC.names}
    leaves = {"e": "/early", "l": "/late"} if "domain/subdomain" in system else {}
    said = {}
    for number, text in texts.items():
        domain = names.get(text[:1])
        leaf = leaves.get(text[1:2], "") if domain in ABC.names[:3] else ""
        said[number] = domain + leaf if domain else "none"
    return json.dumps({"assignments": said})


def lay_out(memories, name, **kw):
    return structure(memories, name, taxonomy=ABC, structurer="a/model", ask=by_first_letters, **kw)


def groups(node):
    return [(group.label, [memory.id for memory in group.memories]) for group in node.children]


def ids(node):
    return [memory.id for memory in node.all_memories()]


# Seven memories: two twins, one that nothing can place.
MEMORIES = ["ce one", "a two", "bl three", "ce one", "? four", "cl five", "be six"]
FIXED = [("apples", ["2"]), ("boats", ["3", "7"]), ("cats", ["1", "4", "6"]), (UNCLASSIFIED, ["5"])]

texts = st.lists(
    st.builds(lambda a, b, c: f"{a}{b} {c}", st.sampled_from("abcd?"), st.sampled_from("elx"), st.text(max_size=3)),
    max_size=9,
)


def test_the_ladder_adds_one_thing_at_a_time():
    assert groups(lay_out(MEMORIES, "fixed")) == FIXED
    flat, reordered, one_group, unlabelled = (
        lay_out(MEMORIES, name) for name in ("flat", "reordered", "one_group", "unlabelled")
    )
    order = ["2", "3", "7", "1", "4", "6", "5"]
    assert ids(flat) == list("1234567") and ids(reordered) == order and not reordered.children
    assert groups(one_group) == [("memories", order)]
    assert groups(unlabelled) == [(None, members) for _, members in FIXED]
    assert render(reordered).count("#") == 0 and render(one_group).splitlines()[1] == "## memories"
    assert (
        parse_context(render(unlabelled)).to_dict()
        == parse_context(re.sub(r"## .*", "##", render(lay_out(MEMORIES, "fixed")))).to_dict()
    )


@settings(max_examples=25, deadline=None)
@given(texts, st.integers(0, 3))
def test_what_goes_in_comes_out(memories, draw):
    going_in = Counter(wrap_memories(memories))
    fixed = lay_out(memories, "fixed")
    tree = lay_out(memories, "tree")
    for name in CONTROLS:
        node = lay_out(memories, name, partition_draw=draw)
        assert Counter(node.all_memories()) == going_in, name
        assert node == lay_out(memories, name, partition_draw=draw), name
        if name in ("reordered", "one_group", "unlabelled", "relabelled"):
            assert ids(node) == ids(fixed), name
        if name in ("tree_top", "tree_leaves"):
            assert ids(node) == ids(tree) and node.depth <= 1, name
    if memories:
        sizes = [(label, len(members)) for label, members in groups(fixed)]
        drawn = groups(lay_out(memories, "random", partition_draw=draw))
        assert [(label, len(members)) for label, members in drawn] == sizes
        assert all(members == sorted(members, key=int) for _, members in drawn)
        wrong = groups(lay_out(memories, "relabelled", partition_draw=draw))
        for (label, members), (right, same) in zip(wrong, groups(fixed), strict=True):
            assert members == same and (label == right) == (right == UNCLASSIFIED)
        assert len({label for label, _ in wrong}) == len(wrong)
        if len([label for label, _ in sizes if label != UNCLASSIFIED]) > 1:
            assert {label for label, _ in wrong} == {label for label, _ in sizes}
        leaves = [label for label, _ in groups(lay_out(memories, "tree_leaves"))]
        assert len(set(leaves)) == len(leaves)


@pytest.mark.parametrize("name", DRAWN)
def test_draws_differ_and_do_not_depend_on_the_sorting_draw(name):
    memories = [f"{letter} number {k}" for k, letter in enumerate("abcdabcdabcd")]
    drawn = [lay_out(memories, name, partition_draw=k) for k in range(5)]
    assert len({json.dumps(node.to_dict()) for node in drawn}) >= 3
    asked = []

    def ask(messages, *, draw, **_):
        asked.append(draw)
        return by_first_letters(messages)

    structure(memories, name, taxonomy=ABC, structurer="a/model", ask=ask, partition_draw=4)
    assert set(asked) <= {0}
    rng = [lay_out(memories, name, rng=np.random.default_rng(seed)) for seed in (1, 1, 2)]
    assert rng[0] == rng[1] != rng[2]


def test_every_order_and_every_wrong_name_comes_up():
    """Over 300 draws of three memories each of the 6 orders, and of three groups each of the 2 derangements, is near
    its share: within 4 standard errors of a binomial."""
    orders = Counter("".join(ids(lay_out(["a", "b", "c"], "shuffled", partition_draw=k))) for k in range(300))
    assert len(orders) == 6 and max(abs(n - 50) for n in orders.values()) < 4 * (300 * 1 / 6 * 5 / 6) ** 0.5
    names = Counter(
        "".join(label[0] for label, _ in groups(lay_out(["a", "b", "c"], "relabelled", partition_draw=k)))
        for k in range(100)
    )
    assert set(names) == {"bca", "cab"} and abs(names["bca"] - 50) < 4 * 5


def test_a_single_group_gets_another_name_of_the_taxonomy():
    drawn = {groups(lay_out(["b one", "b two"], "relabelled", partition_draw=k))[0][0] for k in range(20)}
    assert drawn == {"apples", "cats", "drums"}
    one = Taxonomy("one", (Domain("boats", "Vessels."),))
    with pytest.raises(InputError, match="needs another name for 'boats', and taxonomy 'one' has no other domain"):
        structure(["b one"], "relabelled", taxonomy=one, structurer="a/model", ask=by_first_letters)
    assert groups(lay_out(["? one"], "relabelled")) == [(UNCLASSIFIED, ["1"])]


def test_a_tree_is_flattened_to_its_domains_or_its_leaves():
    memories = [*MEMORIES, "c stays", "al x"]
    tree = lay_out(memories, "tree")
    assert [(path, ids(Node(None, node.memories))) for path, node in tree.walk() if node.memories] == [
        (("apples",), ["2"]),
        (("apples", "late"), ["9"]),
        (("boats", "late"), ["3"]),
        (("boats", "early"), ["7"]),
        (("cats",), ["8"]),
        (("cats", "early"), ["1", "4"]),
        (("cats", "late"), ["6"]),
        ((UNCLASSIFIED,), ["5"]),
    ]
    assert groups(lay_out(memories, "tree_top")) == [
        ("apples", ["2", "9"]), ("boats", ["3", "7"]), ("cats", ["8", "1", "4", "6"]), (UNCLASSIFIED, ["5"]),
    ]  # fmt: skip
    assert groups(lay_out(memories, "tree_leaves")) == [
        ("apples", ["2"]), ("late (apples)", ["9"]), ("late (boats)", ["3"]), ("early (boats)", ["7"]), ("cats", ["8"]),
        ("early (cats)", ["1", "4"]), ("late (cats)", ["6"]), (UNCLASSIFIED, ["5"]),
    ]  # fmt: skip


def test_a_leaf_named_once_keeps_its_name_and_one_named_like_a_domain_does_not():
    def ask(messages, **_):
        if "You plan subdomains" in messages[0]["content"]:
            return json.dumps({"domains": {"apples": ["Boats", "cider"]}})
        return json.dumps({"assignments": {"1": "apples/Boats", "2": "apples/cider", "3": "boats"}})

    node = structure(["x", "y", "z"], "tree_leaves", taxonomy=ABC, structurer="a/model", ask=ask)
    assert groups(node) == [("boats (apples)", ["1"]), ("cider", ["2"]), ("boats", ["3"])]


# --- oracle, empty --------------------------------------------------------------------------------


def write_labels(path, memories, domains):
    rows = [f"e,{memory_set(memories)},{k},{domain},{domain},0\n" for k, domain in enumerate(domains, start=1)]
    path.write_text("entry_id,memory_set,position,domain,acceptable,spans_domains\n" + "".join(rows), encoding="utf-8")
    return str(path)


def test_oracle_takes_the_labels(tmp_path):
    memories = ["Plays the cello.", "Rents a flat.", "Plays the cello.", "Something.", "Has asthma."]
    path = write_labels(tmp_path / "mine.csv", memories, ["personal", "housing", "personal", "none", "health"])
    node = structure(memories, "oracle", labels=path)
    assert groups(node) == [
        ("health", ["5"]), ("personal", ["1", "3"]), ("housing", ["2"]), (UNCLASSIFIED, ["4"]),
    ]  # fmt: skip
    assert node.children[-1].note == "memory 4: labelled as belonging to no domain"
    with pytest.raises(InputError, match="labels 0 of the 4 memories of this list"):
        structure(memories[:4], "oracle", labels=path)
    with pytest.raises(InputError, match="name the domains of taxonomy 'life11'; got 'abc'"):
        structure(memories, "oracle", labels=path, taxonomy=ABC)
    with pytest.raises(InputError, match="labels must be one of"):
        structure(memories, "oracle", labels="referense")
    foreign = write_labels(tmp_path / "other.csv", ["x"], ["gardening"])
    with pytest.raises(InputError, match=r"a label must be one of .*got 'gardening'"):
        structure(["x"], "oracle", labels=foreign)
    assert controls.LABELS_TAXONOMY == load_taxonomy("life11").name


def test_empty_shows_nothing():
    assert structure(MEMORIES, "empty") == Node(None) == structure([], "empty")
    assert "(no stored memories)" in render(structure(MEMORIES, "empty"))


def test_what_the_controls_declare():
    assert all(spec(name).keeps_all and not spec(name).uses_query for name in (*CONTROLS, "oracle"))
    assert {name for name, found in STRUCTURES.items() if found.random} == set(DRAWN)
    assert [spec(name).base for name in CONTROLS] == ["fixed"] * 3 + [None] + ["fixed"] * 2 + ["tree"] * 2
    assert {name for name, found in STRUCTURES.items() if not found.keeps_all} == {
        "empty",
        "gated",
        "rag",
        "self_check",
    }
