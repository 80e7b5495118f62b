"""Arms of structures that draw at random, bring their own taxonomy, or are sorted by the answering model."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import structmem as sm
from structmem.arms import make_arms
from structmem.columns import STRUCTURE_ORDER
from structmem.data import wrap_memories
from structmem.errors import InputError
from structmem.registry import Job
from structmem.taxonomy import load_taxonomy

ENTRY = sm.load_entries("examples", ["cross_domain"])[0]


def arms(structures, structurers=("embedding",), taxonomies=("life11",), draws=(0,), random_draws=3, options=None):
    return make_arms(
        structures, structurers, taxonomies, draws, random_draws, ("markdown",), ("system",), ("standard",), 1, False,
        options or {},
    )  # fmt: skip


def draws_of(found, structure):
    return [arm.partition_draw for arm in found if arm.structure == structure]


def test_only_structures_that_draw_at_random_get_the_random_draws():
    found = arms(["flat", "fixed", "shuffled", "relabelled", "rag", "empty"])
    assert draws_of(found, "shuffled") == draws_of(found, "relabelled") == [0, 1, 2]
    for structure in ("flat", "fixed", "rag", "empty"):
        assert draws_of(found, structure) == [0]


def test_a_model_that_sorts_has_its_own_draws_and_random_structures_have_theirs():
    found = arms(["fixed", "reordered", "random"], structurers=("openai/some",), draws=(0, 1), random_draws=4)
    assert draws_of(found, "fixed") == draws_of(found, "reordered") == [0, 1]
    assert draws_of(found, "random") == [0, 1, 2, 3]


def test_a_taxonomy_of_its_own_is_used_once_whatever_the_run_sorts_into():
    found = arms(["fixed", "epistemic"], taxonomies=("life11", "coarse5"))
    assert [arm.taxonomy.name for arm in found] == ["life11", "coarse5", "epistemic"]


def test_self_check_is_sorted_by_the_answering_model_unless_its_option_says_otherwise():
    assert [arm.structurer for arm in arms(["self_check"])] == ["self"]
    named = arms(["self_check"], options={"self_check": {"structurer": "openai/other"}})
    assert [arm.structurer for arm in named] == ["openai/other"]


def test_a_label_file_stands_in_the_results_without_its_path():
    arm = arms(["oracle"], options={"oracle": {"labels": "/some/where/mine.csv"}})[0]
    assert arm.options == '{"labels":"mine"}' and arm.given == {"labels": "/some/where/mine.csv"}


def test_every_structure_is_in_the_order_of_the_tables():
    assert sorted(STRUCTURE_ORDER) == sorted(sm.STRUCTURES)


@pytest.mark.parametrize("draws", [0, True, 1.5])
def test_random_draws_that_cannot_be_are_refused(draws):
    with pytest.raises(InputError, match="random_draws must be a whole number of at least 1"):
        sm.plan([ENTRY], structures=["shuffled"], random_draws=draws)


LIFE = load_taxonomy("life11")


def job(draw=0, name="shuffled", texts=("a", "b", "c"), rng=None):
    return Job(wrap_memories(texts), None, LIFE, "embedding", None, rng, name=name, draw=draw)


def test_an_order_is_a_permutation_that_depends_on_draw_name_memories_and_salt_alone():
    def order(**of):
        return tuple(job(**of).order(20))

    assert sorted(order()) == list(range(20))
    assert order() == order()
    others = [order(draw=1), order(name="random"), order(texts=("a", "b", "d")), tuple(job().order(20, "x"))]
    assert len({order(), *others}) == 5


def test_every_order_is_about_equally_frequent():
    counts = np.zeros((3, 3))
    for draw in range(600):
        counts[range(3), job(draw).order(3)] += 1
    assert (abs(counts - 200) < 50).all()  # sd of a cell: sqrt(600 · 1/3 · 2/3) = 11.5


def test_a_generator_that_is_given_decides_instead():
    first = sm.structure(list("abcdefgh"), "shuffled", rng=np.random.default_rng(1))
    again = sm.structure(list("abcdefgh"), "shuffled", rng=np.random.default_rng(1))
    other = sm.structure(list("abcdefgh"), "shuffled", rng=np.random.default_rng(2))
    assert first == again != other


class Chooser:
    """A model that answers what it is shown, and as its own structurer keeps one memory."""

    def __init__(self, name, keeps):
        self.model_id, self.keeps, self.sorted = name, keeps, 0

    def __call__(self, messages):
        system = messages[0]["content"]
        if '"memories"' in system:  # the request for a selection shows the shape of its reply
            self.sorted += 1
            return f'{{"memories": [{self.keeps}]}}'
        return " ".join(re.findall(r"^- (.*)$", system, re.M))


def test_each_model_sorts_for_itself(tmp_path):
    models = [Chooser("one", 1), Chooser("two", 2)]
    table = sm.run(
        [ENTRY], models, ["flat", "self_check"], generations=2, aa=False, store=tmp_path / "s.sqlite", temperature=None
    )
    shown = table[table["structure"] == "self_check"].set_index("model")["response"]
    for name, place in (("one", 0), ("two", 1)):
        assert list(shown[name]) == [ENTRY.memories[place].text] * 2
    assert [model.sorted for model in models] == [1, 1]  # once per memory set and query, not once per generation
    assert set(table.loc[table["structure"] == "self_check", "structurer"]) == {"self"}
    again = sm.run([ENTRY], models, ["flat", "self_check"], generations=2, aa=False, store=tmp_path / "s.sqlite",
                   temperature=None)  # fmt: skip
    assert [model.sorted for model in models] == [1, 1] and again["response"].equals(table["response"])


def test_a_plan_counts_the_sorting_of_each_model():
    planned = sm.plan([ENTRY], ["openai/a", "openai/b"], ["flat", "self_check"], aa=False).table()
    sorting = planned[planned["role"] == "structurer"]
    assert sorted(sorting["model"]) == ["openai/a", "openai/b"] and (sorting["calls"] == 1).all()


class Sorter:
    """Sorts into the first domain, proposes nothing, selects nothing; counts what it is asked as a structurer."""

    model_id = "test/sorter"

    def __init__(self):
        self.asked = 0

    def __call__(self, messages, **_):
        system = messages[0]["content"]
        self.asked += '"assignments"' in system or '"domains"' in system
        if '"assignments"' in system:
            return json.dumps(
                {"assignments": {n: "health" for n in re.findall(r"^(\d+)\. ", messages[1]["content"], re.M)}}
            )
        return json.dumps({"domains": {"health": ["one"]} if "subdomains" in system else []})


@pytest.mark.parametrize(
    "structures, options, calls",
    [
        (["fixed", "reordered", "unlabelled", "random", "relabelled"], {}, 2),  # one sorting, two partition draws
        (["random"], {}, 1),  # its partition is draw 0
        (["tree", "tree_top", "tree_leaves"], {}, 4),
        (["tree_leaves"], {"batch_size": 3}, None),
        (["gated"], {}, 4),
        (["fixed", "gated"], {"per_memory": True}, None),
    ],
)
def test_a_plan_counts_what_a_run_asks(tmp_path, structures, options, calls):
    sorter = Sorter()
    settings = {"structurers": [sorter], "structurer_options": options, "partition_draws": [0, 1], "aa": False}
    planned = sm.plan([ENTRY], [Chooser("one", 1)], structures, random_draws=3, **settings).table()
    counted = planned.loc[planned["role"] == "structurer", "calls"].sum()
    sm.run([ENTRY], [Chooser("one", 1)], structures, random_draws=3, **settings, generations=1, temperature=None,
           store=tmp_path / "s.sqlite")  # fmt: skip
    assert counted == sorter.asked and calls in (None, counted)


@pytest.mark.parametrize(
    "structure, options, message",
    [
        ("self_check", {"structurer": "embedding"}, "asks a model which memories matter"),
        ("rag", {"structurer": "self"}, "name an embedding model"),
        ("gated", {"max_domains": 0}, "max_domains must be a whole number"),
        ("oracle", {"labels": "/nowhere/labels.csv"}, "labels must be one of"),
    ],
)
def test_options_that_cannot_be_are_refused_before_any_call(structure, options, message):
    with pytest.raises(InputError, match=message):
        sm.plan([ENTRY], structures=[structure], structurer_options={structure: options})


def test_a_taxonomy_of_its_own_wins():
    node = sm.structure(["User likes jazz."], "epistemic", taxonomy="life11")
    assert node == sm.structure(["User likes jazz."], "epistemic")


def test_a_rearrangement_keeps_the_remark_on_its_partition():
    node = sm.structure(["User likes jazz."], "tree_top", structurer="a/model", ask=lambda messages, **_: "no")
    assert node.note.startswith("one level only")


def test_self_means_something_in_a_run_only():
    with pytest.raises(InputError, match="'self' is the answering model, which only a run has"):
        sm.structure(["User likes jazz."], "fixed", structurer="self")


def test_an_arm_that_drops_memories_says_so(tmp_path):
    table = sm.run([ENTRY], [Chooser("one", 1)], ["flat", "empty", "self_check", "shuffled"], aa=False, random_draws=1,
                   store=tmp_path / "s.sqlite", temperature=None)  # fmt: skip
    remarks = sm.paired_differences(table).set_index("structure")["remark"]
    share = round(100 / len(ENTRY.memories))
    assert "changes the information: shows 0 % of the memories" in remarks["empty"]
    assert f"changes the information: shows {share} % of the memories" in remarks["self_check"]
    assert "changes the information" not in remarks["shuffled"]
    turned = sm.paired_differences(table, baseline="empty").set_index("structure")["remark"]
    assert "shows 100 % of the memories, the baseline 0 %" in turned["shuffled"]
