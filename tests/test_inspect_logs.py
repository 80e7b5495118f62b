"""Inspect logs: every sample and scorer a row, prompts recognised, nothing claimed that a log does not say."""

import json
import sys
import zipfile
from collections import Counter

import pandas as pd
import pytest

from structmem import build_messages, import_results, load_entries
from structmem.data import persistbench_prompts
from structmem.errors import InputError, SetupError
from structmem.foreign_rows import KnownEntries
from structmem.importing import read_source
from structmem.known_prompts import recognised

ENTRIES = load_entries("examples", "cross_domain")[:3]
MODEL = "openai/test-model"
KNOWN = KnownEntries()


def block(entry):
    """The memories as inspect-evals lays them out."""
    return "<memories>\n" + "\n".join(f"- {memory.text}" for memory in entry.memories) + "\n</memories>"


def sample(entry, epoch, value=None, explanation="Because.", **changes):
    """A sample as Inspect writes it; `value` is its score by the benchmark's judge."""
    memories = [memory.text for memory in entry.memories]
    messages = build_messages(entry.query, block(entry), system_prompt="short", model=MODEL)
    made = {
        "id": f"persistbench_{entry.entry_id[-4:]}", "epoch": epoch, "input": entry.query, "target": "",
        "messages": [*messages, {"role": "assistant", "content": f"Answer {epoch}."}],
        "output": {
            "model": "served-1",
            "choices": [{"message": {"role": "assistant", "content": f"Answer {epoch}."}, "stop_reason": "stop"}],
            "completion": f"Answer {epoch}.",
            "usage": {"input_tokens": 10, "output_tokens": 4, "total_tokens": 14},
            "time": 0.5,
        },
        "scores": {"persistbench_judge": {"value": value, "explanation": explanation, "history": []}},
        "metadata": {"memories": memories, "failure_type": entry.failure_type},
        "store": {}, "events": [], "attachments": {}, "model_usage": {},
        "role_usage": {"grader": {"input_tokens": 30, "output_tokens": 7, "total_tokens": 37}},
        "started_at": "2026-03-31T12:00:00+00:00", "completed_at": "2026-03-31T12:00:02+00:00",
    }  # fmt: skip
    if value is None:
        made["scores"] = {}
    return made | changes


def log(samples, value=None, scorers=("persistbench_judge",), **changes):
    """A log around samples; `value` is the failure rate that it states."""
    ids = list(dict.fromkeys(one["id"] for one in samples))
    header = {
        "version": 2, "status": "success",
        "eval": {
            "eval_id": "E1", "run_id": "R1", "created": "2026-03-31T12:00:00+00:00", "task": "t", "task_id": "T1",
            "task_registry_name": "inspect_evals/persistbench_cross_domain",
            "dataset": {"samples": len(ids), "sample_ids": ids}, "model": MODEL,
            "model_generate_config": {"temperature": 0.7, "max_tokens": 50},
            "model_roles": {"grader": {"model": "openai/judge-1", "config": {"temperature": 0.0}, "args": {}}},
            "config": {"epochs": max(one["epoch"] for one in samples), "epochs_reducer": ["max"]},
            "packages": {"inspect_ai": "0.3.285"},
            "scorers": [{"name": name, "options": {}, "metrics": [], "metadata": {}} for name in scorers],
        },
        "plan": {"name": "plan", "steps": [], "config": {}},
        "results": None, "stats": {}, "samples": samples,
    }  # fmt: skip
    if value is not None:
        metric = {"failure_rate": {"name": "inspect_evals/failure_rate", "value": value, "params": {}}}
        score = {"name": scorers[0], "scorer": scorers[0], "reducer": "max", "params": {}, "metrics": metric}
        header["results"] = {"total_samples": len(samples), "completed_samples": len(samples), "scores": [score]}
    return header | changes


def rows_of(tmp_path, content):
    return read_source(written(tmp_path, content), KNOWN).rows


def written(tmp_path, content, name="log.json"):
    path = tmp_path / name
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def failed_before_its_prompt(entry, epoch):
    empty = {"model": MODEL, "choices": [], "completion": ""}
    error = {"message": "RuntimeError('no connection')", "traceback": "", "traceback_ansi": ""}
    only = [{"role": "user", "content": entry.query}]
    return sample(entry, epoch, error=error, output=empty, messages=only, role_usage={})


def test_each_sample_is_a_row_with_a_status_and_a_reason(tmp_path):
    judge_error = {"message": "ValueError('Judge score=9 outside valid range [1, 5]')", "traceback": ""}
    one, two, three = ENTRIES
    samples = [
        sample(one, 1, 1), sample(one, 2, "4"), sample(one, 3, 2.9),
        sample(two, 1, float("nan")), sample(two, 2, "C"), sample(two, 3, 9),
        sample(three, 1, 2, explanation=" "), sample(three, 2, error=judge_error), failed_before_its_prompt(three, 3),
    ]  # fmt: skip
    found = import_results(written(tmp_path, log(samples)))
    rows = found.results.set_index(["entry_id", "generation"])
    expected = {
        (one, 0): ("ok", None, 1), (one, 1): ("ok", None, 4), (one, 2): ("no_verdict", "invalid", None),
        (two, 0): ("no_verdict", "invalid", None), (two, 1): ("no_verdict", "invalid", None),
        (two, 2): ("no_verdict", "invalid", None), (three, 0): ("no_verdict", "invalid", None),
        (three, 1): ("no_verdict", "invalid", None), (three, 2): ("no_response", "error", None),
    }  # fmt: skip
    for (entry, generation), (status, reason, score) in expected.items():
        row = rows.loc[(entry.entry_id, generation)]
        assert row["status"] == status and (reason is None) == pd.isna(row["status_reason"])
        assert reason is None or row["status_reason"] == reason
        assert row["score"] == score if score else pd.isna(row["score"])
    heads = rows["status_detail"].dropna().str.extract(r"^([a-z_]+):")[0].value_counts()
    assert heads.to_dict() == {
        "not_an_integer": 1, "not_a_number": 2, "out_of_range": 1, "no_reasoning": 1,
    }  # fmt: skip
    assert rows.loc[(one.entry_id, 1), "judge_conversions"] == "score '4' read as 4"
    count = found.counts.iloc[0]
    assert (count["rows"], count["scored"], count["unscored"]) == (9, 2, 7)
    assert "9 samples found = 9 rows\n" in str(found) and "9 rows = 2 scored + 7 unscored" in str(found)


def test_columns_say_what_the_log_says_and_no_more(tmp_path):
    thought = [{"type": "reasoning", "reasoning": "Hm."}, {"type": "text", "text": "Answer."}]
    cut = sample(ENTRIES[0], 1, 3)
    cut["output"]["choices"][0] |= {"message": {"role": "assistant", "content": thought}, "stop_reason": "max_tokens"}
    cut["output"]["usage"] |= {"input_tokens_cache_read": 100, "input_tokens_cache_write": 5}
    row = rows_of(tmp_path, log([cut]))[0]
    assert row["entry_id"] == ENTRIES[0].entry_id and row["memory_domain"] == ENTRIES[0].memory_domain
    assert (row["model"], row["judge"], row["judge_model"]) == (MODEL, "persistbench", "openai/judge-1")
    assert (row["temperature"], row["max_tokens"]) == (0.7, 50)
    assert (row["answer_input_tokens"], row["answer_cached_tokens"], row["answer_output_tokens"]) == (115, 100, 4)
    assert (row["judge_input_tokens"], row["judge_output_tokens"]) == (30, 7)
    assert row["model_reasoning"] == "Hm." and row["truncated"] and row["finish_reason"] == "max_tokens"
    assert (row["served_model"], row["latency_s"]) == ("served-1", 0.5)
    assert (row["called_at"], row["run_id"]) == ("2026-03-31T12:00:00+00:00", "inspect-E1")
    assert (row["threshold"], row["scale_high"], row["high_is_bad"]) == (3, 5, True)
    unknown = ["answer_cost_usd", "params_sent", "judge_attempts", "answer_key", "plan_hash", "judge_prompt_hash"]
    assert all(row.get(name) is None for name in [*unknown, "seed", "top_p", "judge_cost_usd"])


def told(change=lambda messages, entry: None, entry=ENTRIES[0]):
    """What is told of an entry's logged messages: structure, renderer, system prompt, defence, placement."""
    messages = sample(entry, 1, 1)["messages"][:2]
    change(messages, entry)
    shown = [(message["role"], message["content"]) for message in messages]
    found = recognised(shown, entry.query, [memory.text for memory in entry.memories], MODEL)
    names = ("structure", "renderer", "system_prompt", "defence", "placement")
    return tuple(found.get(name) for name in names), {"prompt_hash", "context_sha256"} & set(found)


def test_prompts_are_named_only_where_they_are_exactly_ours():
    assert told() == (("flat", "markdown", "short", "standard", "system"), {"prompt_hash", "context_sha256"})

    def restrictive(messages, entry):
        settings = {"system_prompt": "short", "defence": "restrictive", "placement": "user", "model": MODEL}
        messages[:2] = build_messages(entry.query, block(entry), **settings)

    assert told(restrictive)[0] == ("flat", "markdown", "short", "restrictive", "user")

    def reworded(messages, entry):
        messages[0]["content"] = "Other words. " + messages[0]["content"]

    (structure, renderer, name, defence, _), hashes = told(reworded)
    assert (structure, renderer, defence, hashes) == ("flat", "markdown", "unknown", {"context_sha256"})
    assert name.startswith("foreign-") and told(reworded, ENTRIES[1])[0][2] == name  # a template has one name
    assert told(lambda messages, entry: messages.pop(0)) == ((None,) * 5, set())


def test_memories_in_a_layout_of_their_own_are_a_flat_list_of_an_unknown_renderer(tmp_path):
    one = sample(ENTRIES[0], 1, 1)
    one["messages"][0]["content"] = "Known: " + "; ".join(memory.text for memory in ENTRIES[0].memories)
    row = rows_of(tmp_path, log([one]))[0]
    assert (row["structure"], row["renderer"]) == ("flat", "unknown") and "context_sha256" not in row


def test_the_prompt_may_name_the_model_with_its_route(tmp_path):
    pytest.importorskip("inspect_evals")
    one = sample(ENTRIES[0], 1, 1)
    template = persistbench_prompts()["generator"]
    text = template.replace("{model_name}", MODEL).replace("{memories}", block(ENTRIES[0]))  # as inspect-evals does it
    one["messages"][0]["content"] = text
    found = read_source(written(tmp_path, log([one])), KNOWN)
    assert found.rows[0]["system_prompt"] == "persistbench"
    assert any(f"the prompt calls the model {MODEL!r}" in note for note in found.notes)


def test_a_sample_that_failed_before_its_prompt_has_the_settings_of_its_log(tmp_path):
    samples = [sample(ENTRIES[0], 1, 1), failed_before_its_prompt(ENTRIES[0], 2)]
    rows = rows_of(tmp_path, log(samples))
    assert [(row["structure"], row["system_prompt"]) for row in rows] == [("flat", "short")] * 2
    assert ["context_sha256" in row for row in rows] == [True, False]  # what it was shown is not known


def test_a_prompt_that_is_not_recognised_is_unknown_beside_others_that_are(tmp_path):
    strange = sample(ENTRIES[1], 1, 1)
    strange["messages"][0]["content"] = "Nothing of them."
    rows = rows_of(tmp_path, log([sample(ENTRIES[0], 1, 1), strange]))
    assert [row["structure"] for row in rows] == ["flat", "unknown"]


def test_a_score_of_an_empty_answer_is_no_verdict_and_counts_there(tmp_path):
    empty = sample(ENTRIES[0], 1, 3, limit={"type": "token", "limit": 3}, error_retries=[{}])
    empty["output"] |= {"completion": "", "choices": [{"message": {"content": ""}, "stop_reason": "max_tokens"}]}
    found = read_source(written(tmp_path, log([empty])), KNOWN)
    row = found.rows[0]
    assert (row["status"], row["status_reason"], row.get("score"), found.raw) == ("no_response", "empty", None, [3])
    assert any("1 samples ended at a limit" in note for note in found.notes)
    assert any("1 samples were begun again" in note for note in found.notes)


def test_equal_entries_stay_apart(tmp_path):
    record = json.dumps({"query": "Which tea?", "memories": ["Sings."], "failure_type": "cross_domain"})
    (tmp_path / "own.jsonl").write_text(f"{record}\n{record}\n", encoding="utf-8")
    twins = load_entries(tmp_path / "own.jsonl")
    samples = [sample(twins[0], epoch, 1, id=name) for name in ("a", "b", "c") for epoch in (1, 2)]
    found = read_source(written(tmp_path, log(samples)), KnownEntries(tmp_path / "own.jsonl"))
    ids = [row["entry_id"] for row in found.rows[::2]]
    assert ids == [*(entry.entry_id for entry in twins), "c"]


def test_a_scorer_is_never_taken_for_a_judge_of_ours(tmp_path):
    samples = [sample(ENTRIES[0], 1, scores={name: {"value": 5} for name in ("echo", "persistbench")})]
    found = import_results(written(tmp_path, log(samples, scorers=("echo", "persistbench"))))
    assert sorted(found.results["judge"]) == ["inspect-echo", "inspect-persistbench"]
    assert found.rates.empty and found.results["score"].tolist() == [5, 5]


def test_samples_of_our_own_tasks_say_what_they_are(tmp_path):
    ours = {
        "entry_id": "cross_domain-abc", "failure_type": "cross_domain", "structure": "dynamic", "structurer": "m/s",
        "structurer_options": '{"max_new_domains":2}', "taxonomy": "life11", "partition_draw": 1, "renderer": "xml",
        "placement": "user", "defence": "restrictive", "system_prompt": "short", "context_sha256": "ab" * 32,
        "n_unclassified": 1, "escaped": True, "judge_prompt_hash": "cd" * 32, "version": "0.1.0",
    }  # fmt: skip
    one = sample(ENTRIES[0], 1, 3)
    one["metadata"]["structmem"] = ours
    row = rows_of(tmp_path, log([one]))[0]
    assert {name: row[name] for name in ours if name != "version"} == {k: v for k, v in ours.items() if k != "version"}


def test_every_scorer_is_a_judge_and_letters_are_no_scores(tmp_path):
    samples = [sample(entry, epoch, 1) for entry in ENTRIES[:2] for epoch in (1, 2)]
    for one in samples:
        one["scores"] = {"leak": {"value": 5}, "letter": {"value": "C"}}
    del samples[3]["scores"]["letter"]
    found = read_source(written(tmp_path, log(samples, scorers=("leak", "letter"))), KNOWN)
    tally = Counter((row["judge"], row["status"], row.get("status_reason")) for row in found.rows)
    assert tally == {
        ("leak", "ok", None): 4, ("letter", "no_verdict", "invalid"): 3, ("letter", "no_verdict", "not_asked"): 1,
    }  # fmt: skip
    assert found.found == 4 and any("scorer 'leak' is not the benchmark's" in note for note in found.notes)


def test_what_is_not_in_the_log_is_said(tmp_path):
    content = log([sample(ENTRIES[0], 1, 1)], status="cancelled")
    content["eval"]["dataset"]["sample_ids"] = ["a", "b", "c"]
    content["eval"]["config"]["epochs"] = 3
    found = read_source(written(tmp_path, content), KNOWN)
    assert "8 of 9 planned samples are not in the log" in found.notes and "status cancelled" in found.made_by
    assert any(note == "the log holds no results of its own: its status is 'cancelled'" for note in found.notes)


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    library = pytest.importorskip("inspect_ai.log")
    folder = tmp_path_factory.mktemp("eval")
    content = log([sample(entry, epoch, epoch) for entry in ENTRIES for epoch in (1, 2, 3)], 100.0)
    content["samples"][4] = failed_before_its_prompt(ENTRIES[1], 2)
    library.write_eval_log(library.EvalLog.model_validate(content), str(folder / "log.eval"))
    return folder / "log.eval", written(folder, content)


def test_an_archive_and_its_json_twin_are_the_same_rows(archive):
    packed, plain = (read_source(path, KNOWN) for path in archive)
    order = [(row["entry_id"], row["generation"]) for row in packed.rows]
    assert sorted(order) == sorted((entry.entry_id, k) for entry in ENTRIES for k in range(3))
    by_key = {(row["entry_id"], row["generation"]): (row, raw) for row, raw in zip(plain.rows, plain.raw, strict=True)}
    for key, row, raw in zip(order, packed.rows, packed.raw, strict=True):
        assert ({name: v for name, v in row.items() if v is not None}, raw) == (
            {name: v for name, v in by_key[key][0].items() if v is not None}, by_key[key][1],
        )  # fmt: skip
    assert (packed.stated, packed.notes) == (plain.stated, plain.notes) and len(packed.stated) == 1
    assert packed.made_by.startswith("Inspect AI 0.3.285, inspect_evals/persistbench_cross_domain")


def test_damaged_and_other_archives_are_refused_in_one_sentence(archive, tmp_path):
    whole = archive[0].read_bytes()
    (tmp_path / "cut.eval").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"cut\.eval: the archive is cut or damaged"):
        import_results(tmp_path / "cut.eval")
    start = whole.index(b"samples/") + 60
    (tmp_path / "bad.eval").write_bytes(whole[:start] + bytes(200) + whole[start + 200 :])
    with pytest.raises(InputError, match=r"bad\.eval: Inspect's reader cannot read it"):
        import_results(tmp_path / "bad.eval")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as other:
        other.writestr("a.txt", "a")
    with pytest.raises(InputError, match=r"other\.zip is a zip archive without an Inspect log"):
        import_results(tmp_path / "other.zip")


def test_without_inspect_an_archive_names_the_extra_and_a_json_log_is_read(archive, monkeypatch):
    monkeypatch.setitem(sys.modules, "inspect_ai", None)
    with pytest.raises(SetupError, match=r"pip install 'structmem\[inspect\]'"):
        import_results(archive[0])
    assert len(read_source(archive[1], KNOWN).rows) == 9


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content["eval"].pop("model"), "not as Inspect writes a log"),
        (lambda content: content["samples"][0].pop("epoch"), "not as Inspect writes a log"),
        (lambda content: content["samples"][0].update(epoch=0), "index of a generation is 0"),
        (lambda content: content["samples"][0].update(epoch=10**30), "index of a generation is 1000"),
        (lambda content: content["eval"].pop("dataset"), "not as Inspect writes a log"),
        (lambda content: content["eval"]["config"].update(epochs="x"), "not as Inspect writes a log"),
        (lambda content: content["eval"]["model_roles"].update(grader=[]), "not as Inspect writes a log"),
        (lambda content: content["results"]["scores"][0].update(reducer=["x"]), "with the reducer"),
        (lambda content: content.update(samples={}), "holds no sample"),
        (lambda content: content.update(samples="x"), "'samples' is str"),
        (lambda content: content["samples"][0]["metadata"].pop("memories"), "no sample has 'memories'"),
    ],
)
def test_a_log_of_another_shape_is_refused(change, message, tmp_path):
    content = log([sample(ENTRIES[0], 1, 1)], 0.0)
    change(content)
    with pytest.raises(InputError, match=message):
        import_results(written(tmp_path, content))
