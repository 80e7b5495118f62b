"""Wordings of the sorting prompts, the structurer's temperature, and the taxonomies that ship with the package."""

import hashlib
import importlib.util
import json
import re

import pytest

from structmem.data import load_entries
from structmem.describe import hits, structure_all
from structmem.errors import InputError
from structmem.paths import package_file
from structmem.structurers import WORDINGS, prompt
from structmem.structures import option_defaults, structure
from structmem.taxonomy import load_taxonomy, taxonomies

SLOTS = {
    "classifier": ("domains",),
    "classifier_dynamic": ("domains", "max_new_domains"),
    "classifier_tree": ("domains",),
    "classifier_epistemic": ("domains",),
    "proposer": ("domains", "max_leaves"),
}
MEMORIES = ["User has asthma.", "User saves for a house.", "User likes jazz.", "User plays the cello."]


def filled(name, wording):
    return prompt(name, wording, **{slot: f"<{slot}>" for slot in SLOTS[name]})


def shape(text):
    """The line that shows the reply's shape, with the placeholders' names taken out."""
    (line,) = [line for line in text.splitlines() if line.startswith('{"')]
    return re.sub("<[^>]*>", "<>", line)


@pytest.mark.parametrize("name", SLOTS)
def test_every_wording_has_the_slots_the_reply_and_the_rule_about_data(name):
    texts = [filled(name, wording) for wording in WORDINGS]
    assert len(set(texts)) == len(WORDINGS) == 4
    for text in texts:
        assert all(text.count(f"<{slot}>") == 1 for slot in SLOTS[name])
        assert shape(text) == shape(texts[0])
        assert "JSON string" in text and "data" in text and ("instruction" in text or "you do not do it" in text)
    bodies = [set(re.findall(r"[a-z]+", text.lower())) for text in texts]
    overlap = [len(bodies[0] & body) / len(bodies[0] | body) for body in bodies[1:]]
    assert max(overlap) < 0.6  # other words, not another order of the same


def test_wording_0_is_what_earlier_versions_asked():
    digests = {name: hashlib.sha256(prompt_file(name)).hexdigest()[:16] for name in list(SLOTS)[:3] + ["proposer"]}
    assert digests == {
        "classifier": "87b544a8e07d5a81",
        "classifier_dynamic": "9dfd4b2b6a341c42",
        "classifier_tree": "0602ce5d4db9f9ca",
        "proposer": "b54395734929840b",
    }
    seen = asked({"wording": 0, "temperature": 0.0})
    assert seen == asked({})


def prompt_file(name):
    return package_file("prompts", f"{name}.md").read_bytes()


def asked(options, name="fixed"):
    """What a structurer is asked, as (system message, parameters) by role."""
    seen = []

    def ask(messages, *, role, params, **_):
        seen.append((role, messages[0]["content"], params))
        if role == "proposer":
            return json.dumps({"domains": {"personal": ["music", "saving"]}})
        return json.dumps({"assignments": [{"memory": k, "domain": "personal"} for k in range(1, 5)]})

    structure(MEMORIES, name, structurer="some/model", ask=ask, **options)
    return seen


@pytest.mark.parametrize("wording", WORDINGS)
@pytest.mark.parametrize("name", ["fixed", "dynamic", "tree"])
def test_the_wording_and_the_temperature_reach_every_request(name, wording):
    seen = asked({"wording": wording, "temperature": 0.7}, name)
    which = {"fixed": ["classifier"], "dynamic": ["classifier_dynamic"], "tree": ["proposer", "classifier_tree"]}[name]
    assert len(seen) == len(which)
    for file, (_, system, params) in zip(which, seen, strict=True):
        start = filled(file, wording).split("<")[0]
        assert system.startswith(start) and params["temperature"] == 0.7


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("wording", 4, r"wording must be one of \[0, 1, 2, 3\], got 4"),
        ("wording", "1", "wording must be one of"),
        ("wording", True, "wording must be one of"),
        ("wording", 1.0, "wording must be one of"),
        ("temperature", -0.1, r"temperature must be a number in \[0, 2\], got -0.1"),
        ("temperature", None, "temperature must be a number"),
        ("temperature", float("nan"), "temperature must be a number"),
    ],
)
def test_what_is_no_wording_and_no_temperature_is_refused(option, value, words):
    with pytest.raises(InputError, match=words):
        structure(MEMORIES, "fixed", structurer="some/model", ask=lambda *a, **k: "", **{option: value})


def test_the_embedding_structurer_has_neither():
    assert {"wording", "temperature"} <= set(option_defaults("fixed", "some/model"))
    assert not {"wording", "temperature"} & set(option_defaults("fixed"))
    with pytest.raises(InputError, match="got 'wording'"):
        structure(MEMORIES, "fixed", wording=1)


LIFE = [name for name in taxonomies() if name != "epistemic"]


@pytest.mark.parametrize("name", LIFE)
def test_shipped_taxonomies_say_what_belongs_where_and_map_every_label(name):
    taxonomy = load_taxonomy(name)
    listed = [len(re.split("[\\s、。]+", domain.definition)) for domain in taxonomy.domains]  # Japanese has no spaces
    assert min(listed) >= 15
    life = load_taxonomy()
    assert set(taxonomy.accepted) == set(life.accepted) and all(taxonomy.accepted.values())
    if name == "benchmark9":
        assert set(taxonomy.names) == set(taxonomy.accepted) and not taxonomy.homeless
        assert all(domains == (label,) for label, domains in taxonomy.accepted.items())


def test_the_sizes_of_the_taxonomies_and_the_names_of_mem0():
    assert {name: len(load_taxonomy(name).names) for name in LIFE} == {
        "benchmark9": 9, "coarse5": 5, "life11": 11, "life11_ja": 11, "mem0": 15,
    }  # fmt: skip
    assert load_taxonomy("mem0").names == (
        "personal_details", "family", "professional_details", "sports", "travel", "food", "music", "health",
        "technology", "hobbies", "fashion", "entertainment", "milestones", "user_preferences", "misc",
    )  # fmt: skip


@pytest.mark.skipif(importlib.util.find_spec("inspect_evals") is None, reason="inspect-evals is not installed")
@pytest.mark.parametrize("name", LIFE)
def test_the_embedder_hits_above_chance_in_every_taxonomy(name):
    entries = load_entries("persistbench", ["cross_domain"])
    table = hits(structure_all(entries, ["fixed"], taxonomy=name, store=":memory:"), entries, name)
    assert (table["lift_pp"] > 5).all() and table["n"].iloc[0] == 200
