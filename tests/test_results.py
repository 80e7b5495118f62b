"""Results: columns and key, what is refused, twins, merging, writing in one step, and the manifest."""

import hashlib
import json
import os
import stat

import numpy as np
import pandas as pd
import pytest

from structmem.columns import ARM, COLUMNS, NAMES
from structmem.errors import InputError
from structmem.experiment import run
from structmem.manifest import mask
from structmem.results import (
    KEY,
    conform,
    empty_results,
    merge_results,
    read_results,
    save_results,
    sort_results,
    validate,
    write_results,
)
from structmem.simulate import planted_entries, planted_model, simulated_judge

BASE = {
    "failure_type": "cross_domain", "model": "m", "structurer": "", "structurer_options": "", "taxonomy": "",
    "partition_draw": 0, "renderer": "markdown", "placement": "system", "defence": "standard", "system_prompt": "short",
    "replicate": 0, "judge": "j", "judge_model": "", "model_options": "", "threshold": 3, "high_is_bad": True,
    "scale_low": 1, "scale_high": 5, "status": "ok", "score": 2, "truncated": False, "escaped": False,
    "response": "Aé\n1", "called_at": "2026-01-01T00:00:00.000+00:00", "schema_version": 1, "n_memories": 3,
    "temperature": 1.0,
}  # fmt: skip


def table(*changes):
    """Rows that differ from the base row as said."""
    rows = []
    for place, change in enumerate(changes):
        own = {"entry_id": f"e{place}", "structure": "flat", "generation": 0}
        rows.append(dict.fromkeys(NAMES) | BASE | own | change)
    return conform(pd.DataFrame(rows, columns=list(NAMES)))


class TestColumns:
    def test_names_are_unique_and_described(self):
        assert len(set(NAMES)) == len(NAMES)
        assert all(column.description.endswith(".") for column in COLUMNS)
        assert set(KEY) <= set(NAMES)
        assert set(ARM) == set(KEY) - {"entry_id", "generation"}

    def test_no_column_holds_memories_or_queries(self):
        assert not {"context", "memories", "query", "messages", "prompt"} & set(NAMES)

    def test_an_empty_table_has_every_column_in_its_dtype(self):
        df = empty_results()
        assert list(df.columns) == list(NAMES)
        for name, dtype, _ in COLUMNS:
            assert str(df[name].dtype) == dtype, name
        assert len(validate(df)) == 0

    def test_missing_stays_missing(self):
        df = table({"score": None, "status": "no_verdict"})
        assert df[["score", "judge_cost_usd", "max_tokens"]].isna().all(axis=None)
        assert df["status_reason"].isna().all()
        assert (df["structurer"] == "").all()


class TestValidate:
    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"status": "fine"}, "status must be one of"),
            ({"score": 6}, "outside their scale"),
            ({"score": 2.5}, "outside their scale"),
            ({"status": "no_verdict"}, "without status ok"),
            ({"schema_version": 99}, "schema version 99"),
            ({"entry_id": None}, r"\['entry_id'\] must not be empty, as in rows \[1\]"),
            ({"model": ""}, r"\['model'\] must not be empty"),
            ({"score": None}, "ok without a score"),
            ({"score": None, "echoed": True, "echo_overlap": 7.0}, r"beyond \[0, 1\]"),
        ],
    )
    def test_bad_rows_are_refused(self, change, words):
        with pytest.raises(InputError, match=words):
            validate(table(change))

    def test_missing_columns_are_named(self):
        with pytest.raises(InputError, match="'status'"):
            validate(table({}).drop(columns="status"))
        assert "response" not in validate(table({}).drop(columns="response"))

    def test_truth_is_read_as_other_programs_write_it_and_never_guessed(self):
        df = table(*[{}] * 5).astype({"truncated": object})
        df["truncated"] = ["TRUE", "false", 1.0, "0", None]
        assert list(validate(df)["truncated"])[:4] == [True, False, True, False]
        assert validate(df)["truncated"].isna().tolist() == [False] * 4 + [True]
        with pytest.raises(InputError, match="truncated is 'maybe'; expected true or false"):
            validate(df.assign(truncated="maybe"))

    def test_a_column_of_words_where_numbers_belong(self):
        df = table({}).astype({"generation": object})
        df.loc[0, "generation"] = "first"
        with pytest.raises(InputError, match="does not hold what it should"):
            validate(df)

    def test_identical_twins_count_once_and_conflicting_ones_are_refused(self):
        assert len(validate(table({"entry_id": "a"}, {"entry_id": "a", "run_id": "other"}))) == 1
        with pytest.raises(InputError, match=r"2 rows share their key.*'entry_id': 'a'.*differ in \['score'\]"):
            validate(table({"entry_id": "a"}, {"entry_id": "a", "score": 4}, {"entry_id": "b"}))


class TestFiles:
    @pytest.mark.parametrize("suffix", [".parquet", ".csv"])
    def test_round_trip(self, tmp_path, suffix):
        df = table(
            {"max_tokens": 128, "echoed": True, "echo_overlap": 0.25},
            {"score": None, "status": "no_response", "status_reason": "timeout", "response": None, "truncated": None},
            {"failure_type": "", "model": "NA", "structurer": "embedding", "response": 'quote " , comma'},
        )
        path = write_results(df, tmp_path / f"r{suffix}")
        pd.testing.assert_frame_equal(read_results(path), df)

    @pytest.mark.parametrize(
        "text", ["a\rb", "a\r\nb", "\r", "NA", "nan", "  ", '"', "\ufeff", "x\u2028y", "\t", "None"]
    )
    def test_csv_and_parquet_hold_the_same_texts(self, tmp_path, text):
        df = table({"response": text, "model_reasoning": text, "latency_s": 1 / 3}, {"score": 5})
        for suffix in (".parquet", ".csv"):
            pd.testing.assert_frame_equal(read_results(write_results(df, tmp_path / f"r{suffix}")), df)

    def test_the_file_is_private_whole_and_has_its_manifest(self, tmp_path):
        path = write_results(table({}), tmp_path / "deep" / "r.parquet", exclusions=["entry x: no text"])
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert sorted(os.listdir(path.parent)) == ["r.parquet", "r.parquet.manifest.json"]
        facts = json.loads((path.parent / "r.parquet.manifest.json").read_text(encoding="utf-8"))
        assert facts["file_sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
        assert facts["exclusions"] == ["entry x: no text"]
        assert facts["rows"] == 1 and facts["entries"] == 1 and facts["schema_version"] == 1

    def test_a_failed_write_leaves_the_old_file(self, tmp_path, monkeypatch):
        path = write_results(table({}), tmp_path / "r.csv")
        before = path.read_bytes()

        def full(*_, **__):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(pd.DataFrame, "to_csv", full)
        with pytest.raises(InputError, match="No space left"):
            write_results(table({}, {}), path)
        assert path.read_bytes() == before
        assert len(os.listdir(tmp_path)) == 2

    def test_several_files_patterns_and_folders(self, tmp_path):
        write_results(table({"model": "a"}), tmp_path / "a.parquet")
        write_results(table({"model": "b"}), tmp_path / "b.csv")
        for source in (tmp_path, str(tmp_path / "*.*s*v"), [tmp_path / "a.parquet", tmp_path / "b.csv"]):
            assert set(read_results(source)["model"]) <= {"a", "b"}
        assert len(read_results(tmp_path)) == 2
        with pytest.raises(InputError, match="nothing at"):
            read_results(tmp_path / "c*.parquet")

    def test_files_that_are_something_else(self, tmp_path):
        (tmp_path / "x.parquet").write_bytes(b"not parquet")
        with pytest.raises(InputError, match="x.parquet: cannot be read"):
            read_results(tmp_path / "x.parquet")
        with pytest.raises(InputError, match="ends in .parquet or .csv"):
            write_results(table({}), tmp_path / "x.xlsx")


class TestMerge:
    def test_a_model_is_added_and_old_rows_stay(self):
        old, new = table({"model": "a"}, {"model": "a"}), table({"model": "b"})
        merged = merge_results(old, new)
        assert sorted(merged["model"]) == ["a", "a", "b"]
        pd.testing.assert_frame_equal(merge_results(merged, new), merged)

    def test_a_finished_row_takes_the_place_of_a_failed_one(self):
        failed = table({"status": "no_response", "status_reason": "timeout", "score": None, "response": None})
        for merged in (merge_results(failed, table({})), merge_results(table({}), failed)):
            assert list(merged["status"]) == ["ok"]

    def test_an_answer_stays_and_of_two_failures_the_new_one(self):
        asked = {"entry_id": "a", "status": "no_response", "score": None, "response": None}
        old, new = table(asked | {"status_reason": "not_asked"}), table(asked | {"status_reason": "timeout"})
        assert list(merge_results(old, new)["status_reason"]) == ["timeout"]
        answered = table({"entry_id": "a", "status": "no_verdict", "status_reason": "no_json", "score": None})
        for merged in (merge_results(answered, new), merge_results(new, answered)):
            assert list(merged["status_reason"]) == ["no_json"]

    @pytest.mark.parametrize("name", ["r.parquet", "r.csv"])
    def test_a_merged_file_keeps_the_parameters_of_both_runs(self, tmp_path, name):
        one, two = table({"model": "a"}), table({"model": "b"})
        one.attrs["parameters"], two.attrs["parameters"] = {"models": ["a"]}, {"models": ["b"]}
        for df in (one, two, two):
            path = save_results(df, tmp_path / name)
        facts = json.loads(path.with_name(f"{name}.manifest.json").read_text())
        assert facts["parameters"] == [{"models": ["a"]}, {"models": ["b"]}]

    def test_times_may_have_fractions_or_not(self):
        times = ["2026-01-01T00:00:00+00:00", "2026-01-01T00:00:00.5+00:00"]
        assert len(merge_results(table({"model": "a"}), table(*[{"called_at": time} for time in times]))) == 3

    def test_conflicts_are_refused(self):
        with pytest.raises(InputError, match="share their key"):
            merge_results(table({"score": 1}), table({"score": 5}))

    def test_baselines_far_apart_in_time_are_said(self):
        new = table({"model": "b", "called_at": "2026-01-03T12:00:00.000+00:00"})
        with pytest.warns(UserWarning, match="60 hours apart"):
            merge_results(table({"model": "a"}), new)


def test_order_does_not_depend_on_how_rows_came():
    df = table(*[{"structure": s, "generation": g} for s in ("tree", "flat") for g in (1, 0)])
    shuffled = df.sample(frac=1, random_state=np.random.default_rng(3))
    pd.testing.assert_frame_equal(sort_results(df), sort_results(shuffled))


class TestManifest:
    def test_missing_is_counted_by_arm(self, tmp_path):
        df = table({}, {"status": "no_verdict", "status_reason": "refused", "score": None}, {"structure": "fixed"})
        path = write_results(df, tmp_path / "r.parquet")
        arms = json.loads(path.with_name("r.parquet.manifest.json").read_text())["missing_by_arm"]
        assert [(arm["structure"], arm["rows"], arm["ok"], arm["missing"]) for arm in arms] == [
            ("fixed", 1, 1, {}),
            ("flat", 2, 1, {"no_verdict: refused": 1}),
        ]

    def test_keys_and_paths_never_stand_in_it(self, tmp_path):
        df = table({})
        df.attrs["parameters"] = {
            "api_key": "abcdef", "model": "local//home/someone/x.gguf", "file": str(tmp_path / "p.yaml"),
            "note": "Bearer abcdefghijk and sk-abcdefghijklmnop", "nested": [{"auth_token": "s3cretvalue"}],
        }  # fmt: skip
        path = write_results(df, tmp_path / "r.parquet")
        text = path.with_name("r.parquet.manifest.json").read_text(encoding="utf-8")
        for hidden in ("abcdef", "someone", str(tmp_path), "s3cretvalue"):
            assert hidden not in text
        assert "p.yaml" in text and "x.gguf" in text

    def test_plain_values_stay(self):
        value = {"model": "openrouter/a/b", "max_tokens": 3, "note": "and/or", "none": None, "list": [1.5, True]}
        assert mask(value) == value


class TestSaving:
    """What a notebook writes into a file that is there already."""

    def go(self, models, **settings):
        entries = planted_entries(3)
        return run(entries, models, ["flat"], judge=simulated_judge, store=":memory:", aa=False, **settings)

    def test_a_model_joins_and_a_rerun_changes_nothing(self, tmp_path):
        first, second = planted_model({"flat": 0.5}), planted_model({"flat": 0.4})
        path = tmp_path / "r.parquet"
        assert save_results(self.go([first]), "") is None
        save_results(self.go([first]), path)
        save_results(self.go([second]), path)
        save_results(self.go([first]), path)
        saved = read_results(path)
        assert len(saved) == 2 * 9 and saved["model"].nunique() == 2

    def test_other_settings_replace_the_rows_of_their_key_and_say_so(self, tmp_path):
        model, path = planted_model({"flat": 0.5}), tmp_path / "r.parquet"
        save_results(self.go([model], max_tokens=10), path)
        with pytest.warns(UserWarning, match="9 rows of r.parquet were replaced"):
            save_results(self.go([model], max_tokens=20), path)
        assert read_results(path)["max_tokens"].unique().tolist() == [20]
