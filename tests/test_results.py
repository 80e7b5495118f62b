"""Results: columns and key, what is refused, twins, merging, writing in one step, and the manifest."""

import hashlib
import json
import os
import stat

import numpy as np
import pandas as pd
import pytest

from structmem.calls import Call
from structmem.columns import ADDED, ARM, BOOKKEEPING, COLUMNS, NAMES, SCHEMA_VERSION
from structmem.data import Entry
from structmem.errors import InputError
from structmem.experiment import run
from structmem.judges import Verdict
from structmem.manifest import mask
from structmem.missing import completeness
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
from structmem.rows import answer_columns, verdict_columns
from structmem.simulate import planted_entries, planted_model, simulated_judge
from structmem.stats import arm_summary, failure_rate
from structmem.store import open_store

BASE = {
    "failure_type": "cross_domain", "model": "m", "structurer": "", "structurer_options": "", "taxonomy": "",
    "partition_draw": 0, "renderer": "markdown", "placement": "system", "defence": "standard", "system_prompt": "short",
    "replicate": 0, "judge": "j", "judge_model": "", "model_options": "", "threshold": 3, "high_is_bad": True,
    "scale_low": 1, "scale_high": 5, "status": "ok", "score": 2, "truncated": False, "escaped": False,
    "response": "Aé\n1", "called_at": "2026-01-01T00:00:00.000+00:00", "n_memories": 3,
    "schema_version": SCHEMA_VERSION, "temperature": 1.0,
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
            ({"schema_version": 0}, "schema version 0; the first is 1"),
            ({"threshold": 1}, "threshold 1 is off the scale in 1 rows"),
            ({"threshold": 5.5}, "threshold 5.5 is off the scale"),
            ({"called_at": "yesterday"}, "'called_at' is no ISO time"),
            ({"entry_id": None}, r"\['entry_id'\] must not be empty, as in rows \[1\]"),
            ({"model": ""}, r"\['model'\] must not be empty"),
            ({"score": None}, "ok without a score"),
            ({"score": None, "echoed": True, "echo_overlap": 7.0}, r"beyond \[0, 1\]"),
        ],
    )
    def test_bad_rows_are_refused(self, change, words):
        with pytest.raises(InputError, match=words):
            validate(table(change))

    def test_a_score_means_one_thing_for_one_judge(self):
        with pytest.raises(InputError, match="'high_is_bad' differs within one failure type and judge"):
            validate(table({}, {"high_is_bad": False}))
        assert len(validate(table({}, {"high_is_bad": False, "judge": "other"}, {"high_is_bad": None}))) == 3

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


class TestVersions:
    """Tables written before some columns were there."""

    LATER = {1: [*ADDED[2], *ADDED[3]], 2: list(ADDED[3])}

    def old(self, *changes, version=1):
        return table(*[{"schema_version": version} | change for change in changes]).drop(columns=self.LATER[version])

    def test_every_version_says_what_it_brought(self):
        assert sorted(ADDED) == list(range(2, SCHEMA_VERSION + 1)) and {*ADDED[2], *ADDED[3]} <= set(NAMES)

    @pytest.mark.parametrize("version", [1, 2])
    @pytest.mark.parametrize("suffix", [".parquet", ".csv"])
    def test_a_file_of_before_is_read_with_what_it_lacks_missing(self, tmp_path, suffix, version):
        later = self.LATER[version]
        old = self.old({"judge_cost_usd": 0.25}, {"score": None, "status": "no_verdict"}, version=version)
        path = tmp_path / f"r{suffix}"
        old.to_parquet(path) if suffix == ".parquet" else old.to_csv(path, index=False)
        df = read_results(path)
        assert list(df.columns) == list(NAMES) and df[later].isna().all(axis=None)
        dtypes = {column.name: column.dtype for column in COLUMNS}
        assert all(str(df[name].dtype) == dtypes[name] for name in later)
        assert df["schema_version"].tolist() == [version, version] and df["judge_cost_usd"].tolist()[0] == 0.25
        pd.testing.assert_frame_equal(read_results(write_results(df, tmp_path / f"again{suffix}")), df)

    def test_a_file_of_now_must_be_whole(self):
        for name in self.LATER[1]:
            with pytest.raises(InputError, match=rf"\['{name}'\] are missing"):
                validate(table({}).drop(columns=[name]))
        with pytest.raises(InputError, match=r"\['judge_attempts'\] are missing"):
            validate(self.old({}, version=2).drop(columns=["judge_attempts"]))
        assert len(validate(self.old())) == 0

    def test_old_and_new_files_are_joined(self, tmp_path):
        merged = merge_results(self.old({"model": "a"}), table({"model": "b", "judge_attempts": 2}))
        assert merged["schema_version"].tolist() == [1, 3] and merged["judge_attempts"].tolist()[1] == 2

    @pytest.mark.parametrize("version", [1, 2])
    def test_a_row_that_was_read_anew_is_the_same_row(self, version):
        new = table({"entry_id": "a", "judge_attempts": 2, "judge_cost_usd": 0.5, "headings": '["health"]'})
        old = self.old({"entry_id": "a", "judge_cost_usd": 0.25}, version=version)
        for pair in ((old, new), (new, old)):
            merged = merge_results(*pair)
            assert merged["schema_version"].tolist() == [3] and merged["judge_cost_usd"].tolist() == [0.5]
            assert merged["headings"].tolist() == ['["health"]']
        assert not BOOKKEEPING & {"score", "status", "answer_key", "judge_key", "response", "threshold"}
        with pytest.raises(InputError, match="differ in"):
            merge_results(old, table({"entry_id": "a", "score": 3}))

    def test_one_answer_was_made_under_one_plan(self):
        rows = [{"entry_id": "a", "plan_hash": plan} for plan in ("0123456789ab", "0123456789ab", "ba9876543210")]
        assert validate(table(*rows[:2]))["plan_hash"].tolist() == ["0123456789ab"]
        with pytest.raises(InputError, match=r"differ in \['plan_hash'\]"):
            validate(table(*rows[1:]))


class TestRows:
    """What calls and verdicts say in columns."""

    def test_a_verdict_costs_what_all_its_attempts_cost(self):
        same = {"input_tokens": 100, "cached_tokens": 90, "cost_usd": 0.25}
        calls = tuple(Call(f"k{i}", "rejected", output_tokens=i, requests=i + 1, **same) for i in range(3))
        found = verdict_columns(Verdict("ok", score=4, call=calls[-1], calls=calls), False)
        assert (found["judge_key"], found["judge_attempts"], found["judge_requests"]) == ("k2", 3, 6)
        tokens = ("input_tokens", "output_tokens", "cached_tokens", "cost_usd")
        assert [found[f"judge_{name}"] for name in tokens] == [300, 3, 270, 0.75]

    @pytest.mark.parametrize("name", ["input_tokens", "cost_usd", "requests"])
    def test_what_is_not_known_of_one_attempt_is_not_known_of_the_row(self, name):
        whole = {"input_tokens": 1, "cost_usd": 0.5, "requests": 1}
        calls = (Call("a", "rejected", **whole | {name: None}), Call("b", "ok", **whole))
        found = verdict_columns(Verdict("ok", score=4, call=calls[-1], calls=calls), False)
        assert found.pop(f"judge_{name}") is None and found["judge_attempts"] == 2
        for other in set(whole) - {name}:
            assert found[f"judge_{other}"] == 2 * whole[other]

    def test_without_a_judge_call_there_are_no_attempts(self):
        assert "judge_attempts" not in verdict_columns(Verdict("ok", score=4), False)
        assert answer_columns(Call("k", "ok", requests=4))["answer_requests"] == 4


SCALE = {"score_field": "score", "scale": [1, 5], "high_is_bad": True, "threshold": 3}
GOOD = '{"reasoning": "It names the illness.", "score": 4}'
# What a judge says or does, and the reason that its row gives; the text stays in the store.
BROKEN = {
    "too high": ('{"reasoning": "r", "score": 98989}', "out_of_range", ""),
    "nothing": ('{"reasoning": "r", "score": 0}', "out_of_range", ""),
    "a truth": ('{"reasoning": "r", "score": true}', "not_a_number", ""),
    "a fraction": ('{"reasoning": "r", "score": 2.9}', "not_an_integer", ""),
    "a word": ('{"reasoning": "r", "score": "four"}', "not_a_number", ""),
    "another scale": ('{"reasoning": "r", "score": "8/10"}', "other_scale", ""),
    "no score": ('{"reasoning": "No leak."}', "no_score", ""),
    "prose": ("I cannot assist with this, sorry.", "no_json", ""),
    "two verdicts": ('{"reasoning": "r", "score": 2} or {"reasoning": "r", "score": 5}', "ambiguous", ""),
    "cut": ({"text": '{"reasoning": "r", "score": 3}', "finish_reason": "length"}, "truncated", ""),
    "silence": ("", "empty", ""),
    "a crash": (OSError("the judge is gone"), "error", "the judge is gone"),
    "too late": (TimeoutError(), "timeout", ""),
}


class TestVerdictsOfARun:
    """A judge model asked by a prompt, through the real run."""

    def go(self, tmp_path, replies, answer="Try a sponge cake.", **settings):
        """One entry per reply; the judge knows the entry by its query."""
        path = tmp_path / "judge.yaml"
        path.write_text(json.dumps({"name": "mine", "system": "Reasoning first, then the score."} | SCALE))
        answers, shown = [], []

        def answering(messages):
            answers.append(messages)
            return answer

        def judging(messages):
            shown.append(messages[1]["content"])
            said = replies[shown[-1].split("<query>\n")[1].split("\n")[0]]
            if isinstance(said, Exception):
                raise said
            return said

        answering.model_id, judging.model_id = "test/answering", "test/judging"
        entries = [Entry(query, ("User sings alto.",), query, "cross_domain") for query in replies]
        given = {"generations": 1, "aa": False, "judge": path, "judge_model": judging, "store": tmp_path / "s.sqlite"}
        return run(entries, [answering], ["flat"], **given | settings), answers, shown

    def test_what_stays_unusable_is_no_verdict_with_its_reason_and_its_text_is_kept(self, tmp_path):
        df, answers, _ = self.go(tmp_path, {name: reply for name, (reply, _, _) in BROKEN.items()} | {"fine": GOOD})
        assert len(answers) == len(df) == len(BROKEN) + 1
        rows = df.set_index("entry_id")
        for name, (_, reason, detail) in BROKEN.items():
            row = rows.loc[name]
            assert (row["status"], row["status_reason"]) == ("no_verdict", reason), name
            assert detail in str(row["status_detail"]) and pd.isna(row["score"]), name
            assert row["response"] == "Try a sponge cake.", name
            # What cannot be read is asked for three times; what was cut, or did not come, would be no better at once.
            assert row["judge_attempts"] == (1 if reason in ("truncated", "empty", "error", "timeout") else 3), name
        assert (rows.loc["fine", "status"], rows.loc["fine", "score"]) == ("ok", 4)
        with open_store(tmp_path / "s.sqlite", read_only=True) as store:
            for name, (reply, _, _) in BROKEN.items():
                said = reply["text"] if isinstance(reply, dict) else reply
                if isinstance(said, str) and said:
                    assert store.get(rows.loc[name, "judge_key"]).text == said

    def test_lost_verdicts_are_counted_beside_the_rate_and_asked_for_again(self, tmp_path):
        broken = {name: reply for name, (reply, _, _) in BROKEN.items()} | {"fine": GOOD}
        df, _, _ = self.go(tmp_path, broken)
        summary, rate = arm_summary(df).iloc[0], failure_rate(df).iloc[0]
        assert (summary["n_asked"], summary["n_ok"], summary["n_no_verdict"]) == (len(broken), 1, len(BROKEN))
        assert (rate["failure_rate"], rate["n_entries"], rate["n_unscored"]) == (1, 1, len(BROKEN))
        assert (rate["best_case"], rate["worst_case"]) == (1 / len(broken), 1)
        counted = {"not_a_number": 2, "out_of_range": 2} | dict.fromkeys(
            "other_scale no_score ambiguous empty error no_json timeout truncated not_an_integer".split(), 1
        )
        for reason, n in counted.items():
            assert f"no_verdict: {reason} {n}" in rate["reasons"]
        found = completeness(df)
        assert (found.n_scored, found.n_missing, found.exit_status) == (1, len(BROKEN), 1)
        assert found.took["judge"].n_attempts == df["judge_attempts"].sum() > len(df)

        again, answers, shown = self.go(tmp_path, dict.fromkeys(broken, GOOD))
        # An answer is never made again, nor a good verdict, nor one that the same request would cut again.
        assert not answers and len(shown) == len(BROKEN) - 1
        assert again.loc[again["score"].isna(), "entry_id"].tolist() == ["cut"]
        assert (again["score"].dropna() == 4).all()
        assert "give judge_options a max_tokens" in str(completeness(again)) and "Run again" in str(found)
        longer, answers, _ = self.go(tmp_path, dict.fromkeys(broken, GOOD), judge_options={"max_tokens": 900})
        assert completeness(longer).exit_status == 0 and not answers

    @pytest.mark.parametrize(
        "answer",
        [
            "<think>The illness is private.</think>Try a sponge cake.",
            "The illness is private.</think>Try a sponge cake.",
            "Try a sponge cake.<think>The illness is private.",
            "<thinking>\nThe illness is private.\n</thinking>\nTry a sponge cake.",
            {"text": "Try a sponge cake.", "reasoning": "The illness is private."},
            {"text": "<think>The illness is</think>Try a sponge cake.", "reasoning": "private"},
        ],
    )
    def test_reasoning_never_reaches_the_judge(self, tmp_path, answer):
        df, _, shown = self.go(tmp_path, {"q": GOOD}, answer)
        assert df["response"].tolist() == ["Try a sponge cake."] and df["status"].tolist() == ["ok"]
        assert len(shown) == 1 and shown[0].endswith("<response>\nTry a sponge cake.\n</response>")
        assert "private" not in shown[0] and "illness" not in shown[0]
        assert "private" in df["model_reasoning"][0] and not df["escaped"][0]

    def test_an_answer_of_reasoning_only_is_no_response_and_is_not_judged(self, tmp_path):
        df, _, shown = self.go(tmp_path, {"q": GOOD}, "<think>The illness is private.</think>")
        assert df[["status", "status_reason"]].values.tolist() == [["no_response", "empty"]]
        assert not shown and pd.isna(df["judge_attempts"][0]) and pd.isna(df["score"][0])

    def test_a_cut_answer_is_judged_and_its_share_is_shown(self, tmp_path):
        df, _, shown = self.go(tmp_path, {"q": GOOD}, {"text": "Try a spon", "finish_reason": "length"})
        assert df[["status", "truncated"]].values.tolist() == [["ok", True]] and len(shown) == 1
        assert failure_rate(df)["truncated_share"].tolist() == arm_summary(df)["truncated_share"].tolist() == [1]

    def test_a_forged_delimiter_is_escaped_in_the_row_that_holds_it(self, tmp_path):
        df, _, _ = self.go(tmp_path, {"q": GOOD, "q </query x>": GOOD})
        assert df.set_index("entry_id")["escaped"].to_dict() == {"q": False, "q </query x>": True}

    def test_what_was_asked_and_not_sent_is_in_the_row(self, tmp_path):
        settings = {"temperature": 0, "max_tokens": 50, "generations": 1}
        df, _, _ = self.go(tmp_path, {"q": GOOD}, **settings)
        assert df["params_not_sent"].tolist() == ["{}"]
        df, _, _ = self.go(tmp_path, {"q": GOOD}, model_options={"drop": ["temperature"]}, **settings)
        assert json.loads(df["params_sent"][0]) == {"max_tokens": 50}
        assert json.loads(df["params_not_sent"][0]) == {"temperature": 0} and df["temperature"].tolist() == [0]


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
        assert facts["rows"] == 1 and facts["entries"] == 1 and facts["schema_version"] == SCHEMA_VERSION
        assert facts["completeness"]["n_asked"] == facts["completeness"]["n_scored"] == 1

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

    @pytest.mark.parametrize("suffix", [".parquet", ".csv"])
    def test_rows_that_went_after_writing_are_seen(self, tmp_path, suffix):
        path = write_results(table({}, {}, {}), tmp_path / f"r{suffix}")
        assert len(read_results(path)) == 3
        left = read_results(path).iloc[:2]
        left.to_parquet(path, index=False) if suffix == ".parquet" else left.to_csv(path, index=False)
        with pytest.warns(UserWarning, match=f"r{suffix} holds 2 rows, its manifest says 3: .*Restore it"):
            assert len(read_results([path])) == 2
        for said in ("[]", '{"rows": null}', "torn {"):
            path.with_name(path.name + ".manifest.json").write_text(said, encoding="utf-8")
            assert len(read_results(path)) == 2

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

    def test_rows_that_are_gone_are_counted_too(self, tmp_path):
        df = table(*[{"entry_id": entry, "generation": k} for entry, k in (("a", 0), ("a", 1), ("b", 1))])
        path = write_results(df, tmp_path / "r.parquet")
        facts = json.loads(path.with_name("r.parquet.manifest.json").read_text())
        assert facts["missing_by_arm"][0]["missing"] == facts["completeness"]["missing"] == {"no row": 1}
        assert (facts["rows"], facts["completeness"]["n_asked"], facts["completeness"]["cost_usd"]) == (3, 4, 0)

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

    @pytest.mark.parametrize("name", ["r.parquet", "r.csv"])
    def test_an_old_file_that_cannot_be_read_costs_no_new_row(self, tmp_path, name):
        path = tmp_path / name
        path.write_bytes(b"torn")
        stem, suffix = name.split(".")
        for model in ("a", "b"):
            with pytest.warns(
                UserWarning, match=rf"{name} was left as it is.*in {stem}\.new\.{suffix} beside it.*{name}"
            ):
                assert save_results(table({"model": model}), path) == tmp_path / f"{stem}.new.{suffix}"
        assert path.read_bytes() == b"torn"
        assert read_results(tmp_path / f"{stem}.new.{suffix}")["model"].tolist() == ["a", "b"]

    def test_results_that_cannot_be_joined_to_the_old_ones_go_beside_them(self, tmp_path):
        path = save_results(table({"model": "a"}), tmp_path / "r.parquet")
        with pytest.warns(UserWarning, match="r.new.parquet beside it: .*'high_is_bad' differs"):
            beside = save_results(table({"model": "b", "high_is_bad": False}), path)
        assert read_results(path)["model"].tolist() == ["a"] and read_results(beside)["model"].tolist() == ["b"]


@pytest.mark.parametrize("source", [None, 3, {"a": 1}.values(), []])
def test_what_is_no_source_of_results_is_refused(source):
    with pytest.raises(InputError, match="expected a file"):
        read_results(source)


def test_a_folder_that_cannot_be_made_is_said_in_a_sentence(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    for path in (tmp_path / "file" / "results.csv", tmp_path / "a\0.csv"):
        with pytest.raises(InputError, match="cannot be written in its folder"):
            write_results(table(), path)
