"""One memory more: nothing moves, nothing is lost, and nobody reads the other memories."""

from __future__ import annotations

import asyncio
import json
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from structmem import embedding
from structmem.additions import aadd_memory, add_memory
from structmem.calls import Call
from structmem.data import Memory, load_entries, wrap_memories
from structmem.errors import InputError
from structmem.llm import Client
from structmem.structurers import SortingFailed
from structmem.structures import structure
from structmem.taxonomy import Domain, Taxonomy
from structmem.tree import UNCLASSIFIED, Node

ABC = Taxonomy(
    "abc",
    (Domain("apples", "Fruit that grows on apple trees."), Domain("boats", "Vessels."), Domain("cats", "Felines.")),
)
TEXTS = [
    "The user has a peanut allergy and carries an injector.",
    "The user is married to Robin.",
    "The user owes 4,000 euros on a credit card.",
    "The user studies law in the evening.",
    "The user sings in a choir on Mondays.",
    "The user is on the night shift of a bakery.",
    "The user's landlord has given notice.",
    "The user takes a tablet for blood pressure.",
]


def layout(node):
    """Path → ids, for nodes that hold memories, in document order."""
    return {"/".join(path): [m.id for m in part.memories] for path, part in node.walk() if part.memories}


def groups(**ids):
    """A partition of memories whose texts are their ids; a dict of lists makes leaves."""
    made = []
    for label, held in ids.items():
        leaves = held if isinstance(held, dict) else {"": held}
        own = tuple(Memory(i, f"text {i}") for i in leaves.pop("", ()))
        inside = tuple(Node(leaf, tuple(Memory(i, f"text {i}") for i in of)) for leaf, of in leaves.items())
        made.append(Node(label, own, inside))
    return Node(None, children=tuple(made))


def replying(*replies):
    asked = []

    def ask(messages, **kw):
        asked.append((messages, kw))
        return replies[min(len(asked), len(replies)) - 1]

    ask.asked = asked
    return ask


def saying(label):
    return json.dumps({"assignments": [{"memory": 1, "domain": label}]})


def add(node, memory, ask, **kw):
    return add_memory(node, memory, **dict(taxonomy=ABC, structurer="a/model", ask=ask) | kw)


# --- by embedding ----------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(TEXTS), min_size=1, max_size=10), st.integers(1, 10))
def test_fixed_by_embedding_is_the_same_one_by_one(texts, start):
    whole = structure(texts, "fixed")
    grown = structure(texts[:start], "fixed")
    for text in texts[start:]:
        grown = add_memory(grown, text)
    assert grown == whole  # ids, order within domains, order of domains, notes


def test_the_benchmarks_sets_grow_to_the_same_partition():
    for entry in load_entries("persistbench", ["cross_domain"], limit=5):
        grown = structure(entry.memories[:1], "fixed")
        for memory in entry.memories[1:]:
            grown = add_memory(grown, memory)
        assert grown == structure(entry.memories, "fixed")


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(["flat", "fixed", "dynamic", "tree"]),
    st.lists(st.sampled_from(TEXTS), min_size=1, max_size=8),
    st.lists(st.sampled_from(TEXTS), min_size=1, max_size=4),
)
def test_nothing_moves_and_nothing_is_lost(name, texts, more):
    node = structure(texts, name)
    for text in more:
        before, node = node, add_memory(node, text, taxonomy="life11")
        new = {m.id for m in node.all_memories()} - {m.id for m in before.all_memories()}
        assert len(new) == 1 and len(node.all_memories()) == len(before.all_memories()) + 1
        without = {path: [i for i in ids if i not in new] for path, ids in layout(node).items()}
        assert {path: ids for path, ids in without.items() if ids} == layout(before)
        assert all(ids[-1] in new for ids in layout(node).values() if new & {*ids})


def test_an_opened_domain_and_a_leaf_take_what_resembles_their_members(monkeypatch):
    # directions on a circle; "apples" at 0°, "boats" at 120°, "cats" at 240°: all far from 60° and 180°
    degrees = {"text 1": 60, "text 2": 70, "text 3": 0, "text 4": 4, "text 5": -40, "text 6": -44}

    def embed(texts):
        at = [degrees[t] if t in degrees else float(t) for t in texts]
        return np.array([(np.cos(np.radians(d)), np.sin(np.radians(d))) for d in at])

    def nearest(vectors, domains, definitions=None):
        table = np.round(vectors @ embed(["0", "120", "240"]).T, 6)
        return table.argmax(axis=1), table.max(axis=1)

    monkeypatch.setattr(embedding, "embed", embed)
    monkeypatch.setattr(embedding, "nearest_domain", nearest)
    node = groups(apples={"red": ["3", "4"], "green": ["5", "6"]}, music=["1", "2"])
    how = dict(taxonomy=ABC, fit=0.8, cluster_similarity=0.9, leaf_similarity=0.9)
    # cos(64°) = 0.44 to the nearest definition; to the members of music cos 4° and cos 6°: on average 0.996
    assert layout(add_memory(node, "64", **how))["music"] == ["1", "2", "7"]
    # cos(30°) = 0.866 fits apples, so music is not looked at; no leaf: (cos 30° + cos 26°) / 2 = 0.882 is under 0.9
    assert layout(add_memory(node, "30", **how))["apples"] == ["7"]
    # of the leaves, red: (cos 7° + cos 11°) / 2 = 0.987, green: (cos 33° + cos 37°) / 2 = 0.819
    assert layout(add_memory(node, "-7", **how))["apples/red"] == ["3", "4", "7"]
    assert layout(
        add_memory(
            node,
            "-39",
            **how,
        )
    )["apples/green"] == ["5", "6", "7"]
    # below fit and not like music's members, (cos 110° + cos 120°) / 2 < 0: the nearest definition all the same
    assert layout(add_memory(node, "180", **how))["boats"] == ["7"]
    # the thresholds are reached, not only passed: the mean of cos 5° twice is 0.996195
    exact = how | {"cluster_similarity": 0.996195}
    assert layout(add_memory(node, "65", **exact))["music"] == ["1", "2", "7"]
    assert "7" not in layout(add_memory(node, "65", **how | {"cluster_similarity": 0.996196}))["music"]


def test_a_new_domain_stands_in_taxonomy_order():
    node = groups(apples=["1"], cats=["2"], music=["3"], unclassified=["4"])
    assert list(layout(add(node, "x", replying(saying("boats"))))) == ["apples", "boats", "cats", "music", UNCLASSIFIED]
    assert list(layout(add(groups(cats=["1"]), "x", replying(saying("apples"))))) == ["apples", "cats"]
    assert list(layout(add(groups(apples=["1"]), "x", replying(saying("cats"))))) == ["apples", "cats"]
    # a node in another order keeps it; the new domain goes before the first that comes later
    assert list(layout(add(groups(cats=["1"], apples=["2"]), "x", replying(saying("boats"))))) == [
        "boats", "cats", "apples",
    ]  # fmt: skip


# --- by a model ------------------------------------------------------------------------------------------------------


def test_one_small_call_about_this_memory_alone():
    ask = replying(saying("music"))
    node = add(groups(apples=["1"], music=["2"]), "The user plays the oboe.", ask)
    assert layout(node) == {"apples": ["1"], "music": ["2", "3"]}
    ((messages, kw),) = ask.asked
    sent = json.dumps(messages)
    assert "oboe" in sent and "text 1" not in sent and "text 2" not in sent
    assert all(domain.definition in messages[0]["content"] for domain in ABC.domains)
    assert "\n- music\n" in messages[0]["content"] and kw["memories"] == ("The user plays the oboe.",)
    assert kw["role"] == "classifier" and kw["params"]["max_tokens"] == 200
    assert kw["params"]["response_format"]["json_schema"]["schema"]["properties"]["assignments"]["required"] == ["1"]


def test_it_is_asked_as_one_call_per_memory_would():
    """The request is that of ``per_memory``: with a store, a memory that was sorted so is not asked about again."""
    alone, added = replying(saying("boats")), replying(saying("boats"))
    structure(["The user sails."], "fixed", taxonomy=ABC, structurer="a/model", ask=alone, per_memory=True)
    add(groups(apples=["1"]), "The user sails.", added)
    (first, first_kw), (second, second_kw) = *alone.asked, *added.asked
    assert first == second and first_kw["params"] == second_kw["params"]


def test_the_leaves_of_a_tree_are_on_the_menu():
    node = groups(apples={"": ["1"], "red": ["2"]}, music={"loud": ["3"]}, unclassified=["4"])
    ask = replying(saying("apples/red"), saying("music/loud"))
    assert layout(add(node, "x", ask))["apples/red"] == ["2", "5"]
    assert layout(add(node, "x", ask))["music/loud"] == ["3", "5"]
    assert layout(add(node, "x", replying(saying("apples"))))["apples"] == ["1", "5"]
    system = ask.asked[0][0][0]["content"]
    listed = re.findall(r"^- (\S+?)(?::.*)?$", system.split("Rules:")[0], re.M)
    assert listed == ["apples", "apples/red", "boats", "cats", "music", "music/loud"]


def test_what_cannot_be_used_is_asked_again_then_unclassified():
    ask = replying("what?", saying("dogs"), saying("cats"))
    node = add(groups(apples=["1"]), "x", ask)
    assert layout(node) == {"apples": ["1"], "cats": ["2"]} and len(ask.asked) == 3
    assert node.note == "memory 2: 1 of 1 memories were asked more than once"
    bad = replying(saying("dogs"))
    node = add(node, "y", bad, retries=1)
    assert len(bad.asked) == 2 and layout(node)[UNCLASSIFIED] == ["3"]
    assert node.children[-1].note == "memory 3: the model gave 'dogs', a domain that is not on the list"
    node = add(node, "z", replying(saying("none")))
    assert layout(node)[UNCLASSIFIED] == ["3", "4"]
    assert node.children[-1].note.endswith("on the list; memory 4: the model named no domain")


def test_a_failed_provider_leaves_the_node_as_it_was():
    node = groups(apples=["1"])
    gone = Call("", "no_response", "timeout", error="no answer within 120 s.")
    with pytest.raises(SortingFailed, match="timeout"):
        add(node, "x", lambda messages: (gone, None))
    assert node == groups(apples=["1"])


def test_a_callable_model_through_a_client_is_asked_once(tmp_path):
    def model(messages):
        model.asked += 1
        return saying("boats")

    model.model_id, model.asked, node = "mine", 0, groups(apples=["1"])
    for _ in range(2):
        with Client(tmp_path / "store.sqlite", announce=None) as client:
            made = add_memory(node, "x", taxonomy=ABC, structurer=model, ask=client.asker(model))
        assert layout(made) == {"apples": ["1"], "boats": ["2"]}
    assert model.asked == 1


def test_asynchronously():
    async def ask(messages, **kw):
        await asyncio.sleep(0)
        return saying("boats")

    async def both():
        one = await aadd_memory(groups(apples=["1"]), "x", taxonomy=ABC, structurer="a/model", ask=ask)
        return await aadd_memory(one, "y", taxonomy=ABC, structurer="a/model", ask=ask)

    assert layout(asyncio.run(both())) == {"apples": ["1"], "boats": ["2", "3"]}
    assert layout(add(groups(apples=["1"]), "x", ask)) == {"apples": ["1"], "boats": ["2"]}  # twice in a notebook
    assert layout(add(groups(apples=["1"]), "x", ask)) == {"apples": ["1"], "boats": ["2"]}


# --- flat, ids, refusals ---------------------------------------------------------------------------------------------


def test_a_flat_list_asks_nobody():
    ask = replying("never")
    node = add(structure(["a", "b"], "flat"), "c", ask)
    assert node == structure(["a", "b", "c"], "flat") and not ask.asked


@pytest.mark.parametrize(
    "ids, new", [("123", "4"), ("13", "4"), ("ab", "3"), (["7", "x"], "8"), (["12345678901"], "2"), (["²"], "2")]
)
def test_a_text_continues_the_positions(ids, new):
    node = Node(None, tuple(Memory(i, "text") for i in ids))
    assert add_memory(node, "text").all_memories()[-1].id == new


def test_a_memory_keeps_what_it_has():
    memory = Memory("m-9", "text", "chat", "2026-01-02")
    assert add_memory(Node(None, wrap_memories(["a"])), memory).memories[-1] == memory


@pytest.mark.parametrize(
    "node, memory, kw, message",
    [
        (Node(None, (Memory("1", "a"),)), Memory("1", "b"), {}, "id '1' already; expected a new id"),
        (Node(None, (Memory("1", "a"),)), "  ", {}, "is blank"),
        (Node(None, (Memory("1", "a"),)), 3, {}, "is a number; expected text"),
        (Node(None), "a", {}, "holds no memory"),
        ("flat", "a", {}, "node must be a Node, got str"),
        (Node(None, children=(Node(None, (Memory("1", "a"),)),)), "b", {}, "groups without names"),
        (Node(None, children=(Node("x", (Memory("1", "a"),)), Node("x", (Memory("2", "a"),)))), "b", {}, "two groups"),
        (Node("a", children=(Node("b", children=(Node("c", children=(Node("d"),)),)),)), "b", {}, "has 3 levels"),
        (groups(apples=["1"]), "b", {"taxonomy": "nowhere"}, "taxonomy must be one of"),
        (groups(x=["1"], y=["2"], z=["3"]), "b", {}, "the node's groups .* no domains of taxonomy 'abc'"),
        (groups(people=["1"]), "b", {"taxonomy": None}, "no domains of taxonomy 'life11'; give as taxonomy= the one"),
        (groups(**{"x\n- health: all": ["1"]}), "b", {}, "expected one line, for a model reads the names"),
        (groups(apples=["1"]), "b", {"fitt": 1}, r"takes the options \['cluster_similarity', 'fit', 'leaf_simil"),
        (groups(apples=["1"]), "b", {"fit": 2}, "fit must be a cosine"),
        (groups(apples=["1"]), "b", {"structurer": "a/model", "fit": 0.1}, "takes the options"),
        (groups(apples=["1"]), "b", {"structurer": ""}, "structurer must be"),
        (groups(apples=["1"]), "b", {"ask": lambda messages: ""}, "ask was given"),
    ],
)
def test_refusals_say_what_to_do(node, memory, kw, message):
    with pytest.raises(InputError, match=message):
        add_memory(node, memory, **{"taxonomy": ABC} | kw)


def test_without_a_taxonomy_a_node_has_to_look_like_the_default_one():
    assert layout(add_memory(structure(["The user has asthma."], "fixed"), "The user has a peanut allergy."))
    for name, taxonomy in (("epistemic", None), ("fixed", "coarse5"), ("one_group", None)):
        node = structure(["The user loves tea."], name, taxonomy=taxonomy)
        with pytest.raises(InputError, match="no domains of taxonomy 'life11'"):
            add_memory(node, "The user has asthma.")
    opened = groups(gaming=["1", "2"])  # a dynamic layout without any domain of its taxonomy, which is said
    assert layout(add_memory(opened, "The user has asthma.", taxonomy="life11"))["gaming"] == ["1", "2"]
