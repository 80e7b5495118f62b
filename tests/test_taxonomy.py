"""Taxonomies: the eleven domains, files of one's own, and what is wrong with a bad one."""

from __future__ import annotations

import hashlib
import importlib.util

import pytest

from structmem.data import load_entries
from structmem.errors import InputError
from structmem.taxonomy import Domain, Taxonomy, load_taxonomy, taxonomies

GOOD = "domains:\n  - name: Home & Garden\n    definition: Where one lives.\n  - {name: 健康, definition: Illness.}\n"


def load(folder, text: str) -> Taxonomy:
    path = folder / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return load_taxonomy(path)


def test_the_eleven_domains_in_order_with_definitions():
    life = load_taxonomy()
    assert life.names == (
        "health", "identity", "social", "romantic", "personal", "education",
        "employment", "finance", "housing", "legal", "schedule",
    )  # fmt: skip
    assert life.name == "life11"
    assert all(len(domain.definition.split()) >= 20 and "\n" not in domain.definition for domain in life.domains)
    assert "illness" in life.definition("health")
    assert load_taxonomy(life) is life
    assert "life11" in taxonomies()


@pytest.mark.skipif(importlib.util.find_spec("inspect_evals") is None, reason="inspect-evals is not installed")
def test_every_label_of_the_benchmark_is_mapped_and_two_have_no_home():
    life = load_taxonomy()
    labels = {e.memory_domain for e in load_entries(failure_types="cross_domain")}
    assert set(life.accepted) == labels and len(labels) == 9
    assert set(life.homeless) == {
        "Personal Beliefs (Political, Religious, and Social)",
        "Private Thoughts and Journals",
    }
    assert life.accepted["Financial and Legal Matters"] == ("finance", "legal")
    assert all(life.accepted[label] for label in labels - set(life.homeless))


def test_a_file_of_ones_own_needs_no_accepted_section(tmp_path):
    mine = load(tmp_path, GOOD)
    assert (mine.name, mine.names, mine.accepted, mine.homeless) == ("mine", ("Home & Garden", "健康"), {}, ())
    assert load_taxonomy(str(tmp_path / "mine.yaml")) == mine
    assert load(tmp_path, "\ufeff" + GOOD.replace("\n", "\r\n")) == mine


def test_the_hash_is_over_names_and_definitions_only(tmp_path):
    mine = load(tmp_path, GOOD)
    content = '[["Home & Garden", "Where one lives."], ["健康", "Illness."]]'
    assert mine.sha256 == hashlib.sha256(content.encode()).hexdigest()
    assert load(tmp_path, GOOD + "accepted:\n  Health: [健康]\n").sha256 == mine.sha256
    assert load(tmp_path, GOOD.replace("Illness", "Sickness")).sha256 != mine.sha256
    assert Taxonomy("other", mine.domains[::-1]).sha256 != mine.sha256
    assert len({mine, load(tmp_path, GOOD)}) == 1  # hashable, equal by content


def test_labels_may_be_homeless_with_or_without_a_loose_reading(tmp_path):
    mine = load(
        tmp_path, GOOD + "accepted:\n  A: [健康]\n  B: {homeless: true}\n  C: {homeless: true, domains: [健康]}\n"
    )
    assert mine.accepted == {"A": ("健康",), "B": (), "C": ("健康",)}
    assert mine.homeless == ("B", "C")


def named(name: str) -> str:
    return f"domains:\n  - name: {name}\n    definition: Something.\n"


BAD = {
    "no YAML": ("domains: [", "mine.yaml line"),
    "a tab": ("domains:\n\t- name: a\n", "mine.yaml line 2"),
    "a list": ("- a\n- b\n", "no list 'domains'"),
    "an empty file": ("", "no list 'domains'"),
    "no domains": ("domains: []\n", "no domains; expected at least one"),
    "a misspelt key": (GOOD + "acepted: {}\n", "unknown key 'acepted'"),
    "a key twice": (GOOD + "accepted:\n  A: [健康]\n  A: []\n", "line 7: key 'A' is there twice"),
    "domains twice": (GOOD + GOOD, "line 5: key 'domains' is there twice"),
    "no definition": ("domains:\n  - name: home\n", "domain 1 has ['name']; expected 'name' and 'definition'"),
    "a bare name": ("domains:\n  - home\n", "domain 1 has 'home'; expected 'name' and 'definition'"),
    "a blank definition": ("domains:\n  - {name: home, definition: ' '}\n", "domain 'home' has the definition ''"),
    "a number as definition": ("domains:\n  - {name: home, definition: 3}\n", "domain 'home' has the definition 3"),
    "a doubled name": (GOOD + "  - {name: home & garden, definition: x}\n", "is there twice"),
    "the kept name": (named("Unclassified"), "is kept for memories that nothing could place"),
    "a name that YAML reads as a truth value": (named("yes"), "the name of domain 1 is True"),
    "a blank name": (named("' '"), "is blank"),
    "a padded name": (named("'home '"), "has spaces around it"),
    "a line break": (named('"home\\nwork"'), "has '\\n' in it"),
    "a line separator": (named('"home\\u2028work"'), "has '\\u2028' in it"),
    "an invisible character": (named('"home\\u200bwork"'), "has '\\u200b' in it"),
    "a tag": (named("'<home>'"), "has '<' in it"),
    "a heading": (named("'# home'"), "has '#' in it"),
    "a slot": (named("'{memories}'"), "has '{' in it"),
    "a colon": (named("'home: work'"), "has ':' in it"),
    "a bullet": (named("'- home'"), "starts like a list item"),
    "a long name": (named("h" * 61), "has 61 characters; expected at most 60"),
    "an unknown accepted domain": (GOOD + "accepted:\n  A: [health]\n", "accepted 'A' names the domain 'health'"),
    "accepted as text": (GOOD + "accepted:\n  A: 健康\n", "accepted 'A' is '健康'; expected a list"),
    "accepted as a list": (GOOD + "accepted: [健康]\n", "'accepted' is no mapping"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_file_is_refused_with_a_sentence(kind, tmp_path):
    text, sentence = BAD[kind]
    with pytest.raises(InputError) as caught:
        load(tmp_path, text)
    assert sentence in str(caught.value) and "mine" in str(caught.value) and "expected" in str(caught.value)


def test_taxonomies_made_in_code_are_checked_too():
    with pytest.raises(InputError, match="homeless label 'B' is not in 'accepted'"):
        Taxonomy("own", (Domain("home", "x"),), homeless=("B",))
    with pytest.raises(InputError, match="is there twice"):
        Taxonomy("own", (Domain("home", "x"), Domain("Home", "y")))


def test_unknown_names_get_the_menu():
    with pytest.raises(
        InputError, match=r"taxonomy must be one of \[.*'life11'.*\] or the path of a YAML file, got 'life12'"
    ):
        load_taxonomy("life12")
    with pytest.raises(InputError, match="domain must be one of .*'finance'.*, got 'money'"):
        load_taxonomy().definition("money")


@pytest.mark.parametrize("source", [None, 5, ["life11"], "x" * 5000, "a\0b"])
def test_what_is_neither_a_name_nor_a_file_is_refused(source):
    with pytest.raises(InputError, match=r"taxonomy must be one of \[.*'life11'"):
        load_taxonomy(source)
