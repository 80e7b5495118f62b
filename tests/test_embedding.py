"""The offline structurers: vectors, ties, clusters and names, with sockets blocked."""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from structmem import embedders, embedding
from structmem.errors import InputError
from structmem.taxonomy import load_taxonomy

DOMAINS = tuple((d.name, d.definition) for d in load_taxonomy("life11").domains)
POTS = [
    "Throws stoneware pots on a kick wheel.",
    "Glazes stoneware pots with celadon and fires them in a kiln.",
    "Sells stoneware pots fired in a wood kiln.",
]


@pytest.fixture(autouse=True)
def no_sockets(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)


def sort(name, memories, **options):
    return json.loads(embedding.model(embedding.messages(name, memories, domains=DOMAINS, options=options)))


def test_embed_opens_no_socket_even_when_it_loads(monkeypatch):
    embedders._load.cache_clear()
    embedders.KNOWN.clear()
    vectors = embedding.embed(["Plays the cello.", "", "Owes money to a bank."])
    assert vectors.dtype == np.float32 and vectors.shape == (3, 256)
    lengths = [sum(float(x) ** 2 for x in row) ** 0.5 for row in vectors]
    assert lengths == pytest.approx([1, 0, 1], abs=1e-5)


def test_nothing_to_embed():
    assert embedding.embed([]).shape == (0, 256)


def test_a_text_has_one_vector_whatever_stands_beside_it():
    alone = embedding.embed(["Plays the cello."])
    embedders.KNOWN.clear()
    among = embedding.embed(["A much longer text about many different things of daily life.", "Plays the cello.", "x"])
    assert np.array_equal(alone[0], among[1])


def test_few_vectors_are_kept(monkeypatch):
    monkeypatch.setattr(embedders, "KEEP", 3)
    texts = [f"text {k}" for k in range(5)]
    together = embedding.embed(texts)
    assert np.array_equal(together, np.concatenate([embedding.embed([text]) for text in texts]))
    assert len(embedders.KNOWN) <= 3


def test_loading_leaves_logging_alone():
    embedders._load.cache_clear()
    embedders.KNOWN.clear()
    before = list(logging.getLogger().handlers), logging.getLogger().level
    embedding.embed(["x"])
    assert (list(logging.getLogger().handlers), logging.getLogger().level) == before


def test_similarities_are_rounded_cosines():
    a, b = embedding.embed(["Plays the cello.", "Has a bad back."]).astype(float)
    assert embedding.similarities(a[None], b[None])[0, 0] == round(float(np.dot(a, b)), 6)


def test_ties_go_to_the_earlier_domain():
    domains = (("one", "same words"), ("one ", "same words"))
    vectors = embedding.embed(["anything"])
    assert embedding.nearest_domain(vectors, domains)[0].tolist() == [0]


@pytest.mark.parametrize(
    "memory, domain",
    [
        ("Takes metformin for type 2 diabetes.", "health"),
        ("Owes 12,000 on a credit card and pays off a loan.", "finance"),
        ("Is suing a former landlord in small claims court with a lawyer.", "legal"),
        ("Finished a master's degree in chemistry at the university.", "education"),
        ("Works as a project manager at a software company.", "employment"),
    ],
)
def test_plain_memories_find_their_domain(memory, domain):
    assert sort("fixed", [memory])["paths"] == [[domain]]


def test_dynamic_opens_a_domain_for_alike_misfits():
    # fit=1 makes every memory a misfit, so only likeness decides
    memories = [*POTS, "Takes metformin for diabetes."]
    result = sort("dynamic", memories, fit=1.0, cluster_similarity=0.3, max_new_domains=2)
    (name,) = result["new_domains"]
    assert result["paths"] == [[name]] * 3 + [["health"]]
    assert set(name.split(" and ")) <= {"pots", "stoneware", "kiln", "wheel", "fired", "fires", "glazes", "celadon"}


@pytest.mark.parametrize("options", [{"max_new_domains": 0}, {"fit": -1.0}, {"cluster_similarity": 1.0}])
def test_dynamic_falls_back_to_fixed(options):
    given = {"fit": 1.0, "cluster_similarity": 0.3, "max_new_domains": 2} | options
    assert sort("dynamic", POTS, **given) == {"paths": sort("fixed", POTS)["paths"], "new_domains": []}


def test_tree_divides_large_domains_only():
    memories = ["Bakes rye bread.", "Bakes sourdough bread.", "Reads crime novels.", "Reads novels and poems."]
    result = sort("tree", memories, leaf_similarity=0.2, max_leaves=7)
    fixed = [path[0] for path in sort("fixed", memories)["paths"]]
    assert [path[0] for path in result["paths"]] == fixed == ["personal"] * 4
    leaves = [path[1:] for path in result["paths"]]
    assert leaves[0] == leaves[1] != leaves[2] == leaves[3] and leaves[0] and leaves[2]
    assert sort("tree", memories[:3], leaf_similarity=0.2, max_leaves=7)["paths"] == [["personal"]] * 3
    one = sort("tree", memories, leaf_similarity=0.2, max_leaves=1)["paths"]
    assert sorted(len(path) for path in one) == [1, 1, 2, 2]


def test_names_without_spaces_between_words():
    texts = ["陶芸が好きです。毎週ろくろを回します。", "陶芸教室に通っています。", "歯医者は苦手。"]
    vectors = embedding.embed(texts)
    # one run of kanji is in both members, the others are in one of two, and none is outside
    assert embedding.telling_name(texts, vectors, [0, 1]) == "陶芸"
    assert embedding.telling_name(texts, vectors, [0, 1], ["陶芸"]) != "陶芸"
    thai = ["ฉันชอบทำเครื่องปั้นดินเผา", "ทำเครื่องปั้นดินเผาทุกสัปดาห์"]
    name = embedding.telling_name(thai, embedding.embed(thai), [0, 1])
    assert name and any(text.startswith(name) for text in thai)
    assert embedding.telling_name(thai, embedding.embed(thai), [0, 1], [name]) == f"{name} 2"
    assert embedding.telling_name(["!!", "??"], embedding.embed(["!!", "??"]), [0, 1]) == "group"


@pytest.mark.parametrize(
    "text, words",
    [
        ("糖尿病の薬を毎朝飲んでいる", ("糖尿病", "糖尿", "毎朝飲", "毎朝")),
        ("住宅ローン控除", ("住宅", "ローン", "控除")),
        ("離婚調停中", ("離婚調停中", "離婚")),
        ("離婚調停", ("離婚調停", "離婚", "調停")),
        ("分子生物学を専攻", ("分子生物学", "分子", "専攻")),
        ("VS Codeを使う", ("code",)),
        ("Walks the dog", ("walks", "the", "dog")),
    ],
)
def test_words_of_a_text(text, words):
    assert embedding._words(text) == words


def test_only_texts_that_are_named_in_another_way_have_another_rule():
    def rule(name, *texts):
        return json.loads(embedding.messages(name, texts)[0]["content"])["rule"]

    assert {rule(name, "Bakes bread.", "Пьёт кофе") for name in ("fixed", "dynamic", "tree", "rag")} == {1}
    assert [rule(name, "Bakes bread.", "陶芸") for name in ("fixed", "rag", "dynamic", "tree")] == [1, 1, 2, 2]


def test_rag_gives_the_similarities():
    chat = embedding.messages("rag", ["Plays the cello.", ""], query="Which cello strings?")
    near, nothing = json.loads(embedding.model(chat))["similarities"]
    assert near > 0.3 and nothing == 0


def test_another_rule_is_refused():
    chat = embedding.messages("fixed", ["x"], domains=DOMAINS)
    task = json.loads(chat[0]["content"]) | {"rule": 99}
    with pytest.raises(InputError, match="rule 99"):
        embedding.model([{"role": "user", "content": json.dumps(task)}])


def test_model_id_names_the_weights():
    assert embedding.model.model_id == "embedding/wordllama-l2_supercat-256"


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text(max_size=30), min_size=1, max_size=9), st.sampled_from(["fixed", "dynamic", "tree"]))
def test_every_text_gets_one_path_and_the_same_again(texts, name):
    options = {"fit": 1.0, "cluster_similarity": 0.1, "leaf_similarity": 0.1, "max_leaves": 7, "max_new_domains": 2}
    result = sort(name, texts, **options)
    assert len(result["paths"]) == len(texts) and all(path and all(path) for path in result["paths"])
    opened = [path[0] for path in result["paths"] if path[0] in result["new_domains"]]
    assert len(result["new_domains"]) <= 2 and all(opened.count(domain) >= 2 for domain in result["new_domains"])
    assert sort(name, texts, **options) == result


def test_importing_structures_loads_no_array_library():
    code = "import sys, structmem.structures; print({'numpy', 'pandas', 'litellm', 'scipy'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"
