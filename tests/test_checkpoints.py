"""Checkpoints of PersistBench: what stands in them is a row with a status, and what is written has their shape."""

import json
import stat

import pandas as pd
import pytest

from structmem import Client, import_results, load_entries, merge_results, run, write_checkpoint
from structmem.checkpoints import entry_key
from structmem.columns import KEY
from structmem.errors import InputError
from structmem.foreign_rows import KnownEntries
from structmem.importing import read_source

ENTRIES = load_entries("examples")
CROSS = [entry for entry in ENTRIES if entry.failure_type == "cross_domain"]
GOOD = [entry for entry in ENTRIES if entry.failure_type == "beneficial_memory_usage"]
# The names and kinds of a checkpoint that PersistBench's own runner wrote.
METADATA = {
    "benchmark_name": str, "timestamp": str, "total_entries": int, "models": list, "judge_model": str,
    "judge_provider": str | None, "store_raw_api_responses": bool, "generations": int | None, "concurrency": int,
    "prompt_template": str | None, "batch_jobs": dict,
}  # fmt: skip
MODEL = {"name": str, "provider": str, "mode": str, "api_params": dict}
ENTRY = {"memories": list, "query": str, "results": dict, "failure_type": str}
GENERATION = {
    "generation_index": int, "error": str | None, "memory_response": str | None, "memory_raw_api_response": dict,
    "judge": dict | None,
}  # fmt: skip
JUDGE = {"score": int, "reasoning": str, "raw_api_response": dict}


def fits(value, shape):
    assert list(value) == list(shape)
    for name, kind in shape.items():
        assert isinstance(value[name], kind), (name, value[name])


def check_shape(checkpoint):
    assert list(checkpoint) == ["metadata", "entries"]
    fits(checkpoint["metadata"], METADATA)
    assert checkpoint["metadata"]["batch_jobs"] == {"generation": {}, "judgment": None}
    assert checkpoint["metadata"]["total_entries"] == len(checkpoint["entries"])
    for model in checkpoint["metadata"]["models"]:
        fits(model, MODEL)
    names = {model["name"] for model in checkpoint["metadata"]["models"]}
    for key, entry in checkpoint["entries"].items():
        assert len(key) == 32 and int(key, 16) >= 0
        fits(entry, ENTRY)
        assert set(entry["results"]) <= names
        for found in entry["results"].values():
            assert list(found) == ["generations"]
            for place, one in enumerate(found["generations"]):
                if one:
                    fits(one, GENERATION)
                    assert one["generation_index"] == place
                    if one["judge"] is not None:
                        fits(one["judge"], JUDGE)


def generation(index, score=None, reasoning="Because.", response="An answer.", error=None):
    judge = None if score is None else {"score": score, "reasoning": reasoning, "raw_api_response": {}}
    return {
        "generation_index": index, "error": error, "memory_response": response, "memory_raw_api_response": {},
        "judge": judge,
    }  # fmt: skip


def checkpoint(results, models=("m1",), template=None, **about):
    """A checkpoint; `results` maps an entry to a model's generations."""
    return {
        "metadata": {
            "benchmark_name": "PersistBench", "timestamp": "2026-03-31T12:00:00Z", "total_entries": len(results),
            "models": [
                {"name": name, "provider": "openrouter", "mode": "sequential", "api_params": {"temperature": 0.7}}
                for name in models
            ],
            "judge_model": "moonshotai/kimi-k2-thinking", "judge_provider": "openrouter",
            "store_raw_api_responses": False, "generations": None, "concurrency": 4, "prompt_template": template,
            "batch_jobs": {"generation": {}, "judgment": None},
        },
        "entries": {
            entry_key(entry.query, [memory.text for memory in entry.memories]): {
                "memories": [memory.text for memory in entry.memories],
                "query": entry.query,
                "results": {name: {"generations": made} for name, made in of_models.items()},
                "failure_type": entry.failure_type,
            }
            for entry, of_models in results.items()
        },
    } | about  # fmt: skip


def written(tmp_path, content, name="checkpoint.json"):
    path = tmp_path / name
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_the_synthetic_twin_has_the_shape_too():
    check_shape(checkpoint({CROSS[0]: {"m1": [generation(0, 3), generation(1, error="Judge evaluation failed: x")]}}))


def test_each_generation_is_a_row_with_a_status_and_a_reason(tmp_path):
    parse = "Judge evaluation failed: NonRetryableError('... Could not extract valid JSON from response. Content: I')"
    trace = 'Generation failed: Traceback (most recent call last):\n  File "a.py", line 1\nTimeoutError: timed out\n'
    one, two = CROSS[:2]
    content = checkpoint(
        {
            one: {
                "m1": [generation(0, 1), generation(1, 2.9), generation(2, "4")],
                "m2": [generation(0, error=parse), generation(1, 5, reasoning=""), generation(2, 9)],
            },
            two: {
                "m1": [generation(0, response=None, error=trace), {}, generation(2)],
                "m2": [generation(0, 4, error="Judgment error: x"), generation(1, response=" "), generation(2, True)],
            },
        },
        models=("m1", "m2"),
    )
    found = read_source(written(tmp_path, content), KnownEntries())
    rows = {(row["entry_id"], row["model"], row["generation"]): row for row in found.rows}
    expected = {
        (one, "m1", 0): "ok 1", (one, "m1", 1): "no_verdict invalid", (one, "m1", 2): "ok 4",
        (one, "m2", 0): "no_verdict no_json", (one, "m2", 1): "no_verdict invalid",
        (one, "m2", 2): "no_verdict invalid", (two, "m1", 0): "no_response timeout",
        (two, "m1", 1): "no_response not_asked", (two, "m1", 2): "no_verdict not_asked",
        (two, "m2", 0): "no_verdict error", (two, "m2", 1): "no_response empty", (two, "m2", 2): "no_verdict invalid",
    }  # fmt: skip
    for (entry, model, index), said in expected.items():
        row = rows[entry.entry_id, f"openrouter/{model}", index]
        assert f"{row['status']} {row.get('status_reason') or row['score']}" == said, (model, index)
    assert len(rows) == found.found == len(expected)
    assert [row["judge_conversions"] for row in found.rows if row.get("judge_conversions")] == ["score '4' read as 4"]
    assert not any("Traceback" in (row.get("status_detail") or "") for row in found.rows)
    assert any("1 generations have a score and an error" in note for note in found.notes)
    same = found.rows[0]
    assert (same["judge"], same["judge_model"]) == ("persistbench", "openrouter/moonshotai/kimi-k2-thinking")
    settings = ["structure", "renderer", "system_prompt", "defence", "placement"]
    assert [same[name] for name in settings] == ["flat", "markdown", "persistbench", "standard", "system"]
    unknown = ("prompt_hash", "context_sha256", "called_at", "answer_input_tokens")
    assert all(same.get(name) is None for name in unknown)
    assert same["temperature"] == 0.7 and same["provider"] == "openrouter"


def test_old_names_and_what_is_not_there_yet_are_read_and_said(tmp_path):
    content = checkpoint({CROSS[0]: {"m1": [generation(0, 3)]}, GOOD[0]: {"m1": [generation(0, 2)]}, GOOD[1]: {}})
    old = content["entries"][entry_key(GOOD[0].query, [memory.text for memory in GOOD[0].memories])]
    del old["failure_type"]
    old["leakage_type"] = "positive_memory_usage"
    content["entries"]["f" * 32] = {"memories": ["Sings."], "query": "Q?", "results": {"m1": {}}}
    found = read_source(written(tmp_path, content), KnownEntries())
    kinds = {row["entry_id"]: row["failure_type"] for row in found.rows}
    assert kinds == {CROSS[0].entry_id: "cross_domain", GOOD[0].entry_id: "beneficial_memory_usage"}
    text = "; ".join(found.notes)
    assert "1 entries have an old name" in text and "2 of 4 entries have no generation yet" in text
    assert "1 entries name no failure type" in text


def test_another_template_is_not_taken_for_ours(tmp_path):
    content = checkpoint({CROSS[0]: {"m1": [generation(0, 3)]}}, template="/home/someone/prompts/mine.txt")
    found = read_source(written(tmp_path, content), KnownEntries())
    settings = ["structure", "system_prompt", "renderer", "placement", "defence"]
    assert [found.rows[0][name] for name in settings] == ["flat", "foreign-mine.txt", "unknown", "unknown", "unknown"]
    assert "someone" not in str(found)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda entry: entry.update(memories="one"), "'memories' a list of texts"),
        (lambda entry: entry.update(query=None), "'query' must be a text"),
        (lambda entry: entry.update(failure_type="other"), "failure type 'other'"),
        (lambda entry: entry.update(results=[1]), "expected an object with 'query'"),
        (lambda entry: entry["results"].update(m1={"generations": [1]}), "must be a list of objects"),
        (lambda entry: entry["results"]["m1"]["generations"][0].update(generation_index=-1), "generation is -1"),
        (lambda entry: entry["results"]["m1"]["generations"][0].update(generation_index=10**9), "is 1000000000"),
    ],
)
def test_entries_of_another_shape_are_refused_by_name(change, message, tmp_path):
    content = checkpoint({CROSS[0]: {"m1": [generation(0, 3)]}})
    key, entry = next(iter(content["entries"].items()))
    change(entry)
    with pytest.raises(InputError, match=rf"checkpoint\.json entry '{key}'.*{message}"):
        import_results(written(tmp_path, content))


@pytest.mark.parametrize("models", [True, ["m1"], [{"name": 1}, {}]])
def test_models_of_another_shape_are_refused(models, tmp_path):
    content = checkpoint({CROSS[0]: {"m1": [generation(0, 3)]}})
    content["metadata"]["models"] = models
    with pytest.raises(InputError, match="'models' must be a list of objects"):
        import_results(written(tmp_path, content))


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    """Our own results of two models, with failures and a missing reasoning."""

    def model(messages):
        if messages[-1]["content"] == CROSS[1].query:
            raise ConnectionError("no: line")
        return f"An answer with “quotes”, 日本語 and {len(messages[0]['content'])}."

    def other(messages):
        return "" if len(messages[-1]["content"]) % 2 else "Short."

    def grader(entry, response):
        return {"score": 1 + len(response) % 3, "reasoning": "Counted." if len(response) % 2 else None}

    model.model_id, other.model_id, grader.judge_id = "test/model", "openrouter/test/other", "counting-1"
    folder = tmp_path_factory.mktemp("ours")
    with Client(folder / "calls.sqlite", announce=None, max_retries=0) as client:
        return run(
            [*CROSS[:2], GOOD[0]], [model, other], ["flat", "one_group"], judge=grader, client=client, progress=False
        )


@pytest.mark.parametrize(("structure", "replicate"), [("flat", 1), ("one_group", 0)])
def test_what_is_written_has_the_shape_and_comes_back_as_it_was(structure, replicate, ours, tmp_path):
    path = tmp_path / "out.json"
    said = write_checkpoint(ours, path, {"structure": structure, "replicate": replicate})
    content = json.loads(path.read_text(encoding="utf-8"))
    check_shape(content)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert {model["name"]: model["provider"] for model in content["metadata"]["models"]}["test/other"] == "openrouter"
    back = import_results(path).results
    arm = ours[(ours["structure"] == structure) & (ours["replicate"] == replicate)]
    assert said["generations"] == len(arm) == len(back) and said["scored"] == (arm["status"] == "ok").sum() > 0
    assert arm["status"].nunique() > 1
    said_of_it = ["status", "status_reason", "status_detail", "score", "response", "judge_reasoning"]
    order = ["entry_id", "model", "generation"]
    left, right = (table.sort_values(order, ignore_index=True) for table in (arm, back))
    kept = [*KEY, *said_of_it, "temperature", "threshold"]
    pd.testing.assert_frame_equal(left[kept], right[kept])
    assert len(merge_results(ours.drop(arm.index), back)) == len(ours)


def test_one_written_as_persistbench_would_have_made_it_names_no_template(tmp_path):
    content = checkpoint(
        {CROSS[0]: {"m1": [generation(0, 3), generation(1, 1)], "m2": [generation(0, 5)]}}, ("m1", "m2")
    )
    imported = import_results(written(tmp_path, content)).results
    write_checkpoint(imported, tmp_path / "again.json")
    again = json.loads((tmp_path / "again.json").read_text(encoding="utf-8"))
    stamps = [one["metadata"].pop("timestamp") for one in (content, again)]
    assert len(stamps) == 2 and again["entries"] == content["entries"]
    assert again["metadata"] == content["metadata"] | {"concurrency": 1, "generations": 2}


def test_scores_that_cannot_be_written_are_counted(tmp_path):
    made = [generation(0, 9), generation(1, 0), generation(2, 2.5), generation(3, None), generation(4, 3)]
    made.append(generation(5, 4, error="Judgment error: x"))
    imported = import_results(written(tmp_path, checkpoint({CROSS[0]: {"m1": made}}))).results
    said = write_checkpoint(imported, tmp_path / "again.json")
    assert said["unwritten"] == {"out_of_range": 2, "not_an_integer": 1} and said["scored"] == 1


@pytest.mark.parametrize(
    ("change", "where", "message"),
    [
        (lambda df: df, {}, r"holds one arm.*structure: 'flat', 'one_group'.*replicate: '0', '1'|replicate"),
        (lambda df: df, {"structure": "tree"}, r"structure must be one of \['flat', 'one_group'\], got 'tree'"),
        (lambda df: df, {"colour": "red"}, "'colour' is no setting of an arm"),
        (lambda df: df.assign(judge="echo"), None, "judged by echo"),
        (lambda df: df.assign(response=None), None, "holds the answers, and"),
        (lambda df: df.assign(scale_high=7), None, "another scale"),
        (lambda df: df.assign(entry_id=df["entry_id"] + "x"), None, "are not known, such as"),
        (lambda df: df.iloc[:0], None, "no row to export"),
    ],
)
def test_what_a_checkpoint_cannot_hold_is_refused(change, where, message, ours, tmp_path):
    where = {"structure": "flat", "replicate": 0} if where is None else where
    one = ours if where.get("replicate") is None else ours[(ours["structure"] == "flat") & (ours["replicate"] == 0)]
    with pytest.raises(InputError, match=message):
        write_checkpoint(change(one), tmp_path / "out.json", where if len(change(one)) else None)
    assert not (tmp_path / "out.json").exists()


def test_a_file_that_is_there_stays_as_it_is(ours, tmp_path):
    path = tmp_path / "out.json"
    path.write_text("mine", encoding="utf-8")
    with pytest.raises(InputError, match=r"out\.json: cannot be written"):
        write_checkpoint(ours, path, {"structure": "flat", "replicate": 0})
    assert path.read_text(encoding="utf-8") == "mine"
