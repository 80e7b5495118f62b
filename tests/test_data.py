"""Loading entries: the benchmark, our examples, own files and everything that can be wrong with them."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import re
import subprocess
import sys
from collections import Counter
from dataclasses import astuple
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from structmem import data
from structmem.data import (
    FAILURE_TYPES,
    Entry,
    Memory,
    benchmark_hash,
    load_entries,
    persistbench_prompts,
    wrap_memories,
)
from structmem.errors import InputError, SetupError

installed = pytest.mark.skipif(
    importlib.util.find_spec("inspect_evals") is None, reason="inspect-evals is not installed (extra 'persistbench')"
)


def write(folder: Path, *records: object, name: str = "own.jsonl") -> Path:
    path = folder / name
    path.write_bytes("".join(json.dumps(record) + "\n" for record in records).encode())
    return path


def refusal(path: Path | str, **arguments) -> str:
    with pytest.raises(InputError) as caught:
        load_entries(path, **arguments)
    return str(caught.value)


# The benchmark


@installed
def test_persistbench_has_500_entries_with_labels_only_where_they_mean_something():
    entries = load_entries()
    assert Counter(e.failure_type for e in entries) == {
        "cross_domain": 200,
        "sycophancy": 200,
        "beneficial_memory_usage": 100,
    }
    assert list(dict.fromkeys(e.failure_type for e in entries)) == list(FAILURE_TYPES)
    assert len({e.entry_id for e in entries}) == 500
    sizes = [len(e.memories) for e in entries]
    assert (min(sizes), max(sizes), round(sum(sizes) / 500, 1)) == (4, 16, 10.6)
    labelled = [e for e in entries if e.memory_domain or e.query_domain]
    assert {e.failure_type for e in labelled} == {"cross_domain"} and len(labelled) == 200
    assert len({e.memory_domain for e in labelled}) == len({e.query_domain for e in labelled}) == 9
    assert entries[0].entry_id == "cross_domain-6ac426b191d0"
    assert [m.id for m in entries[0].memories[:3]] == ["1", "2", "3"]


@installed
def test_limit_counts_per_failure_type_in_file_order():
    everything = load_entries()
    few = load_entries(limit=2)
    assert few == [*everything[:2], *everything[200:202], *everything[400:402]]
    assert load_entries(failure_types="sycophancy", limit=1) == [everything[200]]
    assert load_entries(failure_types=["sycophancy", "cross_domain"]) == everything[:400]


@installed
def test_loading_imports_nothing_heavy():
    code = (
        "import sys; from structmem.data import load_entries, persistbench_prompts\n"
        "load_entries(); persistbench_prompts()\n"
        "print([m for m in ('inspect_evals', 'inspect_ai', 'pandas', 'numpy', 'yaml', 'litellm') if m in sys.modules])"
    )
    heavy = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1]
    ).stdout.strip()
    assert heavy == "[]"


@installed
def test_prompts_are_the_constants_of_the_installed_file():
    path = Path(importlib.util.find_spec("inspect_evals").submodule_search_locations[0], "persistbench", "prompts.py")
    names: dict = {}
    module = ast.parse(path.read_text(encoding="utf-8"))
    module.body = [node for node in module.body if isinstance(node, ast.Assign)]
    exec(compile(module, "prompts", "exec"), names)
    prompts = persistbench_prompts()
    assert prompts["generator"] == names["GENERATOR_SYSTEM_PROMPT"]
    assert prompts["judge"] == {
        "cross_domain": names["JUDGE_SYSTEM_PROMPT_SINGLE_CROSS_DOMAIN"],
        "sycophancy": names["JUDGE_SYSTEM_PROMPT_SINGLE_SYCOPHANCY"],
        "beneficial_memory_usage": names["JUDGE_SYSTEM_PROMPT_SINGLE_POSITIVE_MEMORY"],
    }
    prompts["judge"].clear()
    assert len(persistbench_prompts()["judge"]) == 3  # a caller's change stays with the caller


@pytest.fixture
def other_version(tmp_path, monkeypatch):
    """An installed benchmark of another version, with entries of our own."""
    folder = tmp_path / "inspect_evals" / "persistbench" / "benchmark_samples"
    folder.mkdir(parents=True)
    for name, kind in (("cross_domain", "cross_domain"), ("sycophancy", "sycophancy"), ("beneficial_samples", None)):
        record = {"query": f"{name}?", "memories": ["User sings."], "failure_type": kind or "beneficial_memory_usage"}
        write(folder, record | {"memory_domain": "positives", "query_domain": "sycophancy"}, name=f"{name}.jsonl")
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path / "inspect_evals")])
    monkeypatch.setattr(data.importlib.util, "find_spec", lambda name: spec)
    return folder


def test_another_version_of_the_benchmark_warns_and_loads(other_version):
    with pytest.warns(UserWarning) as caught:
        entries = load_entries()
    assert [e.failure_type for e in entries] == list(FAILURE_TYPES)
    assert [e.memory_domain for e in entries] == [
        "positives",
        None,
        None,
    ]  # a placeholder only where it is known as one
    found = hashlib.sha256((other_version / "sycophancy.jsonl").read_bytes()).hexdigest()
    assert any("sycophancy.jsonl" in str(w.message) and found in str(w.message) for w in caught)
    files = ("cross_domain", "sycophancy", "beneficial_samples")
    joined = b"".join((other_version / f"{name}.jsonl").read_bytes() for name in files)
    assert benchmark_hash() == hashlib.sha256(joined).hexdigest()


@pytest.mark.filterwarnings("ignore:prompts.py of inspect-evals")
@pytest.mark.parametrize("text", ["GENERATOR_SYSTEM_PROMPT = 'x'\n", "GENERATOR_SYSTEM_PROMPT = open('y').read()\n"])
def test_prompts_of_another_shape_are_a_setup_error(other_version, text):
    (other_version.parent / "prompts.py").write_text(text)
    with pytest.raises(SetupError, match="prompt constant is missing or is no plain text"):
        persistbench_prompts()


def test_missing_benchmark_says_how_to_install_it(monkeypatch, tmp_path):
    monkeypatch.setattr(data.importlib.util, "find_spec", lambda name: None)
    for call in (load_entries, persistbench_prompts, benchmark_hash):
        with pytest.raises(SetupError, match=r"pip install --no-deps inspect-evals==0\.28\.0.*structmem local install"):
            call()
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(data.importlib.util, "find_spec", lambda name: spec)
    with pytest.raises(SetupError, match="is missing"):
        load_entries()


# Our examples


def test_examples_hold_six_entries_of_each_type_and_follow_the_benchmarks_labels():
    entries = load_entries("examples")
    assert all(count >= 6 for count in Counter(e.failure_type for e in entries).values())
    assert {e.failure_type for e in entries} == set(FAILURE_TYPES)
    assert all(8 <= len(e.memories) <= 10 for e in entries)
    texts = [m.text for e in entries for m in e.memories]
    assert len(set(texts)) == len(texts)
    for entry in entries:
        if entry.failure_type == "cross_domain":
            assert entry.memory_domain and entry.query_domain and entry.memory_domain != entry.query_domain
        else:
            assert (entry.memory_domain, entry.query_domain) == (None, None)


@installed
def test_examples_use_all_label_names_of_the_benchmark_and_none_of_its_texts():
    ours, theirs = load_entries("examples"), load_entries()
    assert {e.memory_domain for e in ours} == {e.memory_domain for e in theirs}
    assert {e.query_domain for e in ours} <= {e.query_domain for e in theirs}
    texts = [{e.query for e in entries} | {m.text for e in entries for m in e.memories} for entries in (ours, theirs)]
    assert len(texts[0] & texts[1]) == 0  # a count, so that a failure prints none of them


# Own files


def test_entry_id_is_a_hash_over_query_and_memories_in_their_order(tmp_path):
    path = write(
        tmp_path,
        {"query": "Où ?", "memories": ["a", "b"], "failure_type": "sycophancy"},
        {"query": "Où ?", "memories": ["b", "a"]},
        {"query": "Où ?", "memories": ["b", "a"]},
        {"query": "Où ?", "memories": ["b", "a"]},
    )
    first = hashlib.sha256('["Où ?",["a","b"]]'.encode()).hexdigest()[:12]
    other = hashlib.sha256('["Où ?",["b","a"]]'.encode()).hexdigest()[:12]
    ids = [f"sycophancy-{first}", f"entry-{other}", f"entry-{other}-2", f"entry-{other}-3"]
    assert [e.entry_id for e in load_entries(path)] == ids
    assert [e.entry_id for e in load_entries(path, limit=2)] == ids[:3]  # two of each type, none counts as one


visible = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(
    lambda text: any(char.isalnum() for char in text)
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(memories=st.lists(visible, max_size=6), query=visible, plain=st.booleans())
def test_what_is_written_is_what_is_read(tmp_path, memories, query, plain):
    record = {"query": query, "memories": memories}
    lines, array = tmp_path / "lines.json", tmp_path / "array.jsonl"
    lines.write_bytes((json.dumps(record, ensure_ascii=plain) + "\r\n").encode())
    array.write_bytes(json.dumps([record], ensure_ascii=plain, indent=1).encode("utf-8-sig"))
    for path in (lines, array):
        (entry,) = load_entries(path)
        assert entry.query == query
        assert [(m.id, m.text) for m in entry.memories] == [(str(i + 1), text) for i, text in enumerate(memories)]
    assert load_entries(lines) == load_entries(array)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(memories=st.lists(visible, min_size=2, max_size=5), random=st.randoms(use_true_random=False))
def test_two_orders_are_two_entries(tmp_path, memories, random):
    shuffled = random.sample(memories, len(memories))
    path = write(tmp_path, {"query": "q?", "memories": memories}, {"query": "q?", "memories": shuffled})
    first, second = load_entries(path)
    assert first.entry_id != second.entry_id
    assert second.entry_id.endswith("-2") == (memories == shuffled)


def test_twins_are_kept_and_nothing_is_normalised(tmp_path):
    twins = [
        "User keeps bees.",
        "User keeps bees.",
        "User keeps bees. ",
        "Cafe\u0301",
        "Caf\u00e9",
        "a\u2028b\u0085c\x0bd",
    ]
    (entry,) = load_entries(write(tmp_path, {"query": "q?", "memories": twins}))
    assert [m.text for m in entry.memories] == twins
    assert len({m.id for m in entry.memories}) == len(twins)


def test_none_one_and_a_thousand_memories_and_a_very_long_one(tmp_path):
    many = [f"User has been to village {n}." for n in range(1000)]
    path = write(tmp_path, *({"query": "q?", "memories": m} for m in ([], ["one"], many, ["long " * 12_000])))
    assert [len(e.memories) for e in load_entries(path)] == [0, 1, 1000, 1]
    assert len(load_entries(path)[3].memories[0].text) == 60_000


BAD_RECORDS = {
    "no memories": ({"query": "q?", "failure_type": "sycophancy"}, "'memories' missing, found query, failure_type"),
    "no query": ({"memories": ["a"]}, "'query' missing, found memories"),
    "a misspelt name": ({"qery": "q?", "memory": ["a"]}, "'query' and 'memories' missing, found qery, memory"),
    "an empty object": ({}, "found no fields"),
    "a list": (["a"], "the record is a list; expected an object"),
    "a string": ("a", "the record is a string; expected an object"),
    "a blank query": ({"query": " \n", "memories": ["a"]}, "'query' is blank"),
    "a query in parts": ({"query": ["q"], "memories": ["a"]}, "'query' is a list; expected a string"),
    "memories as text": ({"query": "q?", "memories": "a"}, "'memories' is a string; expected a list of strings"),
    "memories as mapping": ({"query": "q?", "memories": {"1": "a"}}, "'memories' is an object; expected a list"),
    "memories null": ({"query": "q?", "memories": None}, "'memories' is null; expected a list"),
    "an empty memory": ({"query": "q?", "memories": ["a", ""]}, "'memories' item 2 is blank ('')"),
    "an invisible memory": ({"query": "q?", "memories": ["\u200b\ufeff"]}, r"item 1 is blank ('\u200b\ufeff')"),
    "a null memory": ({"query": "q?", "memories": ["a", None]}, "'memories' item 2 is null; expected a string"),
    "a number": ({"query": "q?", "memories": [7]}, "'memories' item 1 is a number"),
    "a truth value": ({"query": "q?", "memories": [True]}, "'memories' item 1 is true or false"),
    "a nested list": ({"query": "q?", "memories": [["a"]]}, "'memories' item 1 is a list"),
    "an object": ({"query": "q?", "memories": [{"text": "a"}]}, "'memories' item 1 is an object"),
    "half a character": ({"query": "q?", "memories": ["ok \ud83d"]}, "item 1 is broken at character 4"),
    "an unknown type": (
        {"query": "q?", "memories": ["a"], "failure_type": "crossdomain"},
        "'failure_type' must be one of ['beneficial_memory_usage', 'cross_domain', 'sycophancy'], got 'crossdomain'",
    ),
    "a type in a list": ({"query": "q?", "memories": ["a"], "failure_type": ["sycophancy"]}, "got ['sycophancy']"),
    "a domain as number": ({"query": "q?", "memories": ["a"], "memory_domain": 3}, "'memory_domain' is a number"),
    "not a number": ({"query": "q?", "memories": ["a"], "weight": [1, float("nan")]}, "'weight' item 2 is NaN"),
    "infinity": ({"query": "q?", "memories": ["a"], "w": {"x": float("-inf")}}, "'w' 'x' is -Infinity"),
}


@pytest.mark.parametrize("kind", BAD_RECORDS)
def test_a_bad_record_is_named_with_file_line_field_found_and_expected(kind, tmp_path):
    record, sentence = BAD_RECORDS[kind]
    message = refusal(write(tmp_path, {"query": "fine?", "memories": ["fine"]}, record))
    assert message.startswith("own.jsonl line 2: ")
    assert sentence in message and "expected" in message or "must be one of" in message
    assert message.endswith("1 of 2 records are unsound: correct or remove them.")


def test_a_field_given_twice_is_refused(tmp_path):
    path = tmp_path / "own.jsonl"
    path.write_text('{"query": "q?", "memories": ["a"], "memories": ["b"]}\n')
    assert "line 1: 'memories' is given 2 times" in refusal(path)


def test_all_problems_are_collected_and_the_first_ten_shown(tmp_path):
    path = write(tmp_path, *({"query": "q?", "memories": ["a", ""]} for _ in range(13)), {"query": "", "memories": []})
    lines = refusal(path).splitlines()
    assert [int(re.search(r"line (\d+)", line)[1]) for line in lines[:10]] == list(range(1, 11))
    assert lines[10:] == ["… and 4 more problems.", "14 of 14 records are unsound: correct or remove them."]


def test_plain_records_need_neither_type_nor_domains(tmp_path):
    path = write(tmp_path, {"query": "q?", "memories": ["a"]}, {"query": "r?", "memories": ["a"], "memory_domain": ""})
    entries = load_entries(path)
    assert [(e.failure_type, e.memory_domain, e.query_domain) for e in entries] == [(None, None, None)] * 2
    assert "no entry of ['sycophancy']; failure types found: ['none']" in refusal(path, failure_types="sycophancy")


def test_arguments_are_checked_with_the_menu(tmp_path):
    assert "failure_type must be one of" in refusal("examples", failure_types=["cross_domain", "leak"])
    for limit in (-1, True, 1.5, "3"):
        assert "limit must be a whole number" in refusal("examples", limit=limit)
    assert "source must be 'persistbench', 'examples' or the path of a file, got 'persistbnech'" in refusal(
        "persistbnech"
    )
    assert "the path of a file" in refusal(tmp_path)
    empty = tmp_path / "empty.jsonl"
    for content in ("", "\n \n", "[]"):
        empty.write_text(content)
        assert "holds no records" in refusal(empty)


def test_hash_of_a_file_is_the_files_hash(tmp_path):
    path = write(tmp_path, {"query": "q?", "memories": []})
    assert benchmark_hash(path) == benchmark_hash(str(path)) == hashlib.sha256(path.read_bytes()).hexdigest()


# Objects made by hand


def test_wrapping_gives_positions_and_refuses_what_is_no_memory():
    kept = Memory("m9", "User paints.", date="2025-01-01")
    assert wrap_memories(["User sings.", kept, "User sings."]) == (
        Memory("1", "User sings."),
        kept,
        Memory("3", "User sings."),
    )
    assert wrap_memories([]) == ()
    for bad, sentence in (
        (["a", " "], "memory 2 is blank"),
        (["a", None], "memory 2 is null"),
        ([Memory("1", "")], "memory 1 is blank"),
        ([Memory("2", "x"), "y"], "memory 2 has the id '2' of memory 1"),
        ("a, b", "one string"),
    ):
        with pytest.raises(InputError, match=sentence):
            wrap_memories(bad)


def test_an_entry_made_by_hand_is_checked_too():
    assert Entry("e", ["User sings."], "q?").memories == (Memory("1", "User sings."),)
    with pytest.raises(InputError, match="'query' is blank"):
        Entry("e", [], " ")
    with pytest.raises(InputError, match="failure_type must be one of"):
        Entry("e", [], "q?", "leak")


def test_failure_types_are_the_benchmarks():
    assert [astuple(kind) for kind in FAILURE_TYPES.values()] == [
        ("cross_domain", 1, 5, True, 3, 3, "score"),
        ("sycophancy", 1, 5, True, 3, 3, "score"),
        ("beneficial_memory_usage", 1, 3, False, 3, 1, "rating"),
    ]  # fmt: skip


# The list of models


def test_models_file_lists_seven_models_and_the_judge_and_says_what_is_known_of_them():
    listed = yaml.safe_load((Path(__file__).parents[1] / "data" / "models.yaml").read_text(encoding="utf-8"))
    assert [m["name"] for m in listed["models"]] == [
        "llama-3.3-70b", "qwen3-235b", "deepseek-v3.2", "gpt-oss-120b", "glm-4.7", "grok-4.1-fast", "gemini-3.1-pro"
    ]  # fmt: skip
    judge = listed["judge"]
    assert judge["litellm_id"] == "openrouter/moonshotai/kimi-k2-thinking"
    assert judge["params"] == {"temperature": 0, "reasoning_effort": "high"}
    assert judge["options"]["extra_body"]["provider"]["order"] == ["google-vertex"]
    spec = importlib.util.find_spec("litellm")
    folder = Path(spec.submodule_search_locations[0]) if spec else None
    prices = json.loads((folder / "model_prices_and_context_window_backup.json").read_bytes()) if folder else None
    for model in [*listed["models"], judge]:
        assert model["litellm_id"].startswith("openrouter/") and model["vendor"]
        assert model["weights"] in ("open", "proprietary")
        assert (model["verified"], model["note"]) == (False, "id not verified here")
        if prices:
            assert model["in_litellm_price_map"] == (model["litellm_id"] in prices)


@pytest.mark.parametrize("memories", [None, 5, {"1": "User runs."}, {"a", "b"}, [Memory(1, "User runs.")]])
def test_memories_without_texts_or_order_are_refused(memories):
    with pytest.raises(InputError, match="expected a (list of strings|string)"):
        wrap_memories(memories)


@pytest.mark.parametrize(
    "fields", [{"entry_id": None}, {"entry_id": " "}, {"failure_type": ["sycophancy"]}, {"failure_type": 5}]
)
def test_fields_of_an_entry_are_checked(fields):
    with pytest.raises(InputError):
        Entry(**{"entry_id": "e", "memories": ["User runs."], "query": "Where?"} | fields)


@pytest.mark.parametrize("types", [5, [["sycophancy"]], {"syco": 1}])
def test_failure_types_of_the_wrong_kind_show_the_menu(types):
    with pytest.raises(InputError, match="failure_type must be one of"):
        load_entries("examples", failure_types=types)


@pytest.mark.parametrize("source", ["x" * 5000, "a\0b", None, 5])
def test_a_source_that_can_be_no_file_is_refused(source):
    with pytest.raises(InputError, match="source must be"):
        load_entries(source)
