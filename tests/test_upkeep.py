"""Upkeep of stores: merging loses, doubles and overwrites nothing; pruning never takes a finished call unasked."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import stat
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from test_schema import OLD, old_store
from test_store import example, raw, run_child

from structmem import cli
from structmem.errors import InputError, StoreError
from structmem.recorded import Recorded
from structmem.store import Store
from structmem.upkeep import Merged, merge, prune


def made(path, numbers, **fields) -> str:
    with Store(path) as store:
        for number in numbers:
            store.put(*example(number, **fields))
    return str(path)


def state(folder) -> dict:
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


FIND = "SELECT text FROM calls JOIN memory_hashes USING(memory_set) WHERE hash = ?"


def found(store, memory) -> set[str]:
    with closing(sqlite3.connect(store.path)) as db:
        return {text for one in store.memory_hashes(memory) for (text,) in db.execute(FIND, (one,))}


# -- merge ------------------------------------------------------------------------------------------------------------


def test_stores_of_several_machines_become_one(tmp_path):
    mine, other = made(tmp_path / "mine.sqlite", range(3)), made(tmp_path / "b" / "other.sqlite", range(2, 5))
    third = made(tmp_path / "c" / "third.sqlite", range(5, 6))
    before = state(tmp_path / "b")
    assert merge(mine, [other, third]) == [Merged(other, 2, 0, 1, 0), Merged(third, 1, 0, 0, 0)]
    assert state(tmp_path / "b") == before
    with Store(mine) as store, Store(other) as source:
        for number in range(6):
            call, request = example(number)
            assert store.get(call.key) == replace(call, from_store=True)
            assert store.messages(call.key) == list(request.messages)
        assert found(store, "likes tea") == {f"answer {number}" for number in range(6)}
        for number in range(6):  # whichever store's salt it was hashed with
            assert found(store, f"memory {number}") == {f"answer {number}"}
        assert found(store, "likes coffee") == set() and len(store.memory_hashes("x")) == 3
        assert source.memory_hashes("x") == [source.memory_hash("x")]


def test_each_answer_keeps_the_plan_it_was_made_under(tmp_path):
    mine = made(tmp_path / "mine.sqlite", [0], plan_hash="a" * 12)
    other = made(tmp_path / "other.sqlite", [0, 1], plan_hash="b" * 12)
    old = str(tmp_path / "old.sqlite")
    old_store(old, version=2)
    with Store(made(tmp_path / "third.sqlite", [2], plan_hash="c" * 12)) as store:
        store.export(tmp_path / "third.jsonl")
    merge(mine, [other, old, tmp_path / "third.jsonl"])
    keys = [*(example(number)[0].key for number in range(3)), OLD["key"]]
    with Store(mine) as store:
        assert [store.get(key).plan_hash for key in keys] == ["a" * 12, "b" * 12, "c" * 12, None]
    prune(mine)
    with Store(mine) as store:
        assert store.get(keys[1]).plan_hash == "b" * 12


def test_merging_again_adds_nothing(tmp_path):
    mine, other = made(tmp_path / "mine.sqlite", range(3)), made(tmp_path / "other.sqlite", range(2, 5))
    made(other, [8], status="no_response", status_reason="timeout", text=None)
    assert merge(mine, [other, other]) == [Merged(other, 2, 1, 1, 0), Merged(other, 0, 0, 3, 0)]
    before = Path(mine).read_bytes()
    merge(mine, [other])
    assert Path(mine).read_bytes() == before


@settings(max_examples=10, deadline=None)
@given(some.lists(some.lists(some.integers(0, 6), max_size=6), min_size=1, max_size=3))
def test_a_merged_store_holds_the_union(tmp_path_factory, parts):
    folder = tmp_path_factory.mktemp("m")
    places = [made(folder / f"{place}.sqlite", numbers) for place, numbers in enumerate(parts)]
    merge(folder / "all.sqlite", places)
    with Store(folder / "all.sqlite") as store:
        kept = store.get_many(example(number)[0].key for number in range(7))
    assert {call.text for call in kept.values()} == {f"answer {number}" for part in parts for number in part}


def test_another_reply_is_counted_and_ours_stays(tmp_path):
    mine, other = made(tmp_path / "a.sqlite", range(3)), made(tmp_path / "b.sqlite", range(1))
    made(other, [1, 2], text="another")
    assert merge(mine, [other]) == [Merged(other, 0, 0, 3, 2)]
    with Store(mine) as store:
        assert [store.get(example(number)[0].key).text for number in range(3)] == ["answer 0", "answer 1", "answer 2"]


def test_failures_are_added_once_and_the_last_one_counts(tmp_path):
    failed = {"status": "no_response", "text": None}
    mine = made(
        tmp_path / "a.sqlite", [0], **failed, status_reason="timeout", called_at="2026-01-02T00:00:00.000+00:00"
    )
    other = made(tmp_path / "b.sqlite", [0], **failed, status_reason="error", called_at="2026-01-01T00:00:00.000+00:00")
    assert merge(mine, [other])[0].failures == 1 and merge(mine, [other])[0].failures == 0
    with Store(mine) as store:
        assert {call.status_reason for call in store.failures()} == {"timeout", "error"}
        assert store.last_failure(example(0)[0].key).status_reason == "timeout"
        store.export(tmp_path / "out.jsonl")
    assert [call.status_reason for call in Recorded(tmp_path / "out.jsonl").failures()] == ["timeout"]


def test_recorded_calls_are_merged_and_their_requests_come_later(tmp_path):
    other = made(tmp_path / "other.sqlite", range(2))
    made(other, [7], status="no_response", text=None, status_reason="empty")
    with Store(other) as store:
        assert store.export(tmp_path / "calls.jsonl") == 3
    mine = tmp_path / "mine.sqlite"
    assert merge(mine, [tmp_path / "calls.jsonl"])[0] == Merged(str(tmp_path / "calls.jsonl"), 2, 1, 0, 0)
    key = example(0)[0].key
    with Store(mine) as store:
        assert store.get(key).text == "answer 0" and store.messages(key) == [] and not found(store, "memory 0")
    assert merge(mine, [other])[0] == Merged(other, 0, 0, 2, 0)
    with Store(mine) as store:
        assert store.messages(key) == list(example(0)[1].messages) and found(store, "memory 0") == {"answer 0"}


def test_an_old_store_is_merged_as_it_is(tmp_path):
    old_store(tmp_path / "old.sqlite")
    before = (tmp_path / "old.sqlite").read_bytes()
    merge(tmp_path / "new.sqlite", [tmp_path / "old.sqlite"])
    assert (tmp_path / "old.sqlite").read_bytes() == before
    with Store(tmp_path / "new.sqlite") as store:
        assert store.get(OLD["key"]).text == OLD["text"] and store.get(OLD["key"]).requests is None


def test_a_source_that_was_killed_keeps_its_log(tmp_path):
    run_child("s = Store(path)\nfor n in range(5): s.put(*example(n))\ndie()", tmp_path / "b.sqlite")
    before = {name: data for name, data in state(tmp_path).items() if not name.endswith("-shm")}
    assert before["b.sqlite-wal"]
    assert merge(tmp_path / "a.sqlite", [tmp_path / "b.sqlite"])[0].added == 5
    assert {name: data for name, data in state(tmp_path).items() if name in before} == before


def damaged(path):
    made(path, range(60))
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 4096] = bytes(4096)
    path.write_bytes(data)


def newer(path):
    made(path, range(1))
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 99")


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda path: path.write_text("some,table\n1,2\n", encoding="utf-8"), "is not a structmem store"),
        (damaged, "damaged or only half written"),
        (newer, "schema version 99"),
        (lambda path: None, "There is no store of calls"),
    ],
)
def test_a_spoilt_source_is_named_and_nothing_is_merged(tmp_path, spoil, says):
    mine, good, bad = (
        made(tmp_path / "a.sqlite", range(1)),
        made(tmp_path / "b.sqlite", range(1, 3)),
        tmp_path / "c é.db",
    )
    spoil(bad)
    before = bad.exists() and bad.read_bytes()
    with pytest.raises(StoreError, match=says) as error:
        merge(mine, [good, bad])
    assert "c é.db" in str(error.value) and (bad.exists() and bad.read_bytes()) == before
    with Store(mine) as store:
        assert store.info()["calls"] == {"answer ok": 1}
    with pytest.raises(StoreError, match=says):
        merge(tmp_path / "new.sqlite", [bad])
    assert not (tmp_path / "new.sqlite").exists()


def test_a_store_is_not_merged_into_itself(tmp_path):
    mine = made(tmp_path / "a.sqlite", range(1))
    os.link(mine, tmp_path / "b.sqlite")
    (tmp_path / "c.sqlite").symlink_to(mine)
    for name, under in (
        (mine, ";"),
        (tmp_path / "b.sqlite", r" under another name \(a hard link\);"),
        ("c.sqlite", ";"),
    ):
        with pytest.raises(StoreError, match=f"is the store that is merged into{under}"):
            merge(mine, [tmp_path / name])
    for place in (":memory:", tmp_path, "x.jsonl"):
        with pytest.raises(InputError, match="expected the path of a store"):
            merge(place, [mine])


def test_a_source_whose_log_lies_beside_another_name_says_so(tmp_path):
    other = made(tmp_path / "b.sqlite", range(1))
    os.link(other, tmp_path / "link.sqlite")
    with Store(other) as store:
        store.put(*example(1))
        with pytest.raises(StoreError, match=r"several names \(hard links\), and its log may lie beside another one"):
            merge(tmp_path / "a.sqlite", [tmp_path / "link.sqlite"])
    assert merge(tmp_path / "a.sqlite", [tmp_path / "link.sqlite"])[0].added == 2


def test_a_source_that_breaks_off_adds_nothing(tmp_path):
    mine, other = made(tmp_path / "a.sqlite", range(1)), made(tmp_path / "b.sqlite", range(1, 700))
    with closing(sqlite3.connect(mine)) as db:
        db.execute("CREATE TRIGGER late BEFORE INSERT ON calls WHEN (SELECT count(*) FROM calls) > 600 "
                   "BEGIN SELECT RAISE(ABORT, 'no more'); END")  # fmt: skip
    with pytest.raises(StoreError, match="no more"):
        merge(mine, [other])
    with Store(mine) as store:
        assert store.info()["calls"] == {"answer ok": 1} and len(store.memory_hashes("x")) == 1


# -- prune ------------------------------------------------------------------------------------------------------------


def texts(path) -> set[str]:
    with closing(sqlite3.connect(path)) as db:
        return {text for (text,) in db.execute("SELECT text FROM texts WHERE length(text) < 100")}


@pytest.fixture
def filled(tmp_path):
    """Three finished answers, one of them of 2025, a finished judgement of another model, and two failures."""
    path = made(tmp_path / "s.sqlite", [0, 1])
    made(path, [2], called_at="2025-12-31T23:59:59.999+00:00")
    made(path, [3], role="judge", model="acme/judge")
    made(path, [4], status="no_response", text=None, error="only here 4")
    made(path, [5], status="no_response", text=None, error="only here 5", called_at="2025-06-01T00:00:00.000+00:00")
    return path


def test_prune_takes_failures_and_nothing_else(filled):
    before = Path(filled).read_bytes()
    goes = prune(filled, dry_run=True)
    assert (goes.failures, goes.finished, goes.done) == ({"answer no_response": 2}, {}, False)
    assert Path(filled).read_bytes() == before and b"only here 4" in before
    gone = prune(filled)
    assert gone.done and gone.failures == goes.failures and gone.texts == 2
    data = Path(filled).read_bytes()
    assert b"only here" not in data and b"question 4" not in data and not Path(filled + "-wal").exists()
    assert stat.S_IMODE(os.stat(filled).st_mode) == 0o600
    assert texts(filled) == {f"question {number}" for number in range(4)}
    with Store(filled) as store:
        assert store.info()["calls"] == {"answer ok": 3, "judge ok": 1}
        assert raw(store, f"SELECT count(*) FROM memory_hashes WHERE hash = '{store.memory_hash('memory 4')}'") == [
            (0,)
        ]
        assert found(store, "likes tea") == {f"answer {number}" for number in range(4)}


def test_prune_before_a_day(filled):
    assert prune(filled, before="2026-01-01").failures == {"answer no_response": 1}
    with Store(filled, read_only=True) as store:
        assert [call.error for call in store.failures()] == ["only here 4"]


@pytest.mark.parametrize(
    ("which", "left"),
    [
        ({"before": "2026-01-01"}, {"answer ok": 2, "judge ok": 1, "answer no_response": 1}),
        ({"role": "judge"}, {"answer ok": 3, "answer no_response": 2}),
        ({"model": "acme/m"}, {"judge ok": 1}),
        ({"role": "judge", "model": "acme/m"}, {"answer ok": 3, "judge ok": 1, "answer no_response": 2}),
    ],
)
def test_finished_calls_go_only_when_asked_twice(filled, which, left):
    before, asked = Path(filled).read_bytes(), []

    def answer(goes, said):
        asked.append(goes.finished)
        return said

    if left.get("answer ok") != 3 or "judge ok" not in left:  # there is something to ask about
        for said in (False, None, "no"):
            assert not prune(filled, **which, finished=True, confirm=lambda goes, said=said: answer(goes, said)).done
        assert Path(filled).read_bytes() == before and len(asked) == 3
    assert prune(filled, **which, finished=True, confirm=lambda goes: answer(goes, True)).done
    with Store(filled) as store:
        assert store.info()["calls"] == left


def test_what_is_finished_while_one_is_asked_stays(filled):
    def meanwhile(_):
        made(filled, [9])
        return True

    prune(filled, model="acme/m", finished=True, confirm=meanwhile)
    with Store(filled) as store:
        assert store.get(example(9)[0].key).text == "answer 9" and store.get(example(0)[0].key) is None


def test_what_was_pruned_while_one_is_asked_changes_what_one_was_asked_about(filled):
    def meanwhile(_):
        prune(filled)
        return True

    with pytest.raises(StoreError, match="was pruned by another process meanwhile; nothing was deleted"):
        prune(filled, role="judge", finished=True, confirm=meanwhile)
    with Store(filled) as store:
        assert store.info()["calls"] == {"answer ok": 3, "judge ok": 1}


def test_a_call_of_an_unknown_time_is_not_before_any_day(filled):
    made(filled, [6], called_at="")
    assert prune(filled, before="2026-01-01", finished=True, confirm=lambda goes: True).finished == {"answer ok": 1}
    with Store(filled) as store:
        assert store.get(example(6)[0].key) and not store.get(example(2)[0].key)


def test_a_link_is_pruned_and_stays_a_link(filled, tmp_path):
    (tmp_path / "link.sqlite").symlink_to(filled)
    assert prune(tmp_path / "link.sqlite").done and (tmp_path / "link.sqlite").is_symlink()
    with Store(filled) as store:
        assert store.failures() == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"finished": True, "confirm": bool}, "never all deleted"),
        ({"finished": True, "role": "judge"}, "only when asked twice"),
        ({"role": "jugde"}, "role must be one of"),
        ({"model": "acme/x"}, r"model must be one of \['acme/judge', 'acme/m'\]"),
        ({"before": "yesterday"}, "such as 2026-03-31, got 'yesterday'"),
    ],
)
def test_prune_refuses_what_it_cannot_mean(filled, arguments, says):
    before = Path(filled).read_bytes()
    with pytest.raises(InputError, match=says):
        prune(filled, **arguments)
    assert Path(filled).read_bytes() == before


def test_prune_makes_no_store(tmp_path):
    with pytest.raises(StoreError, match="There is no store"):
        prune(tmp_path / "none.sqlite")
    assert not list(tmp_path.iterdir())


def test_a_store_that_is_open_while_it_is_pruned_writes_its_texts_again(filled):
    with Store(filled) as store:
        failed, request = example(6, "no_response", text=None, status_reason="timeout")
        store.put(failed, request)
        assert prune(filled).failures == {"answer no_response": 3}
        call, request = example(6)
        store.put(call, request)
        assert store.messages(call.key) == list(request.messages) and found(store, "memory 6") == {"answer 6"}


# -- command line -----------------------------------------------------------------------------------------------------


def run(capsys, *arguments):
    status = cli.main(["store", *map(str, arguments)])
    return status, *capsys.readouterr()


def test_merge_on_the_command_line(capsys, tmp_path):
    mine, other = made(tmp_path / "a.sqlite", range(3)), made(tmp_path / "b.sqlite", range(2, 5), text="another")
    status, out, _ = run(capsys, "merge", other, "--store", mine)
    assert status == 0 and out == (
        f"{other}: 2 finished calls and 0 failures added, 1 finished calls were here already "
        "(1 with another reply there; ours stays)\n"
    )
    status, _, err = run(capsys, "merge", mine, "--store", mine)
    assert status == 2 and "is the store that is merged into" in err


def test_prune_on_the_command_line(capsys, filled, monkeypatch):
    status, out, _ = run(capsys, "prune", "--dry-run", "--store", filled)
    assert (status, out) == (0, "Would delete 2 failures: 2 answer no_response.\n")
    select = ("prune", "--finished", "--role", "judge", "--store", filled)
    status, _, err = run(capsys, *select)
    assert status == 2 and "--yes-delete-finished" in err
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    for answer, ends in (("n", 1), ("y", 0)):
        monkeypatch.setattr("builtins.input", lambda question, answer=answer: answer)
        status, out, _ = run(capsys, *select)
        assert status == ends and "To be deleted: 1 finished calls: 1 judge ok.\n" in out
    assert "Deleted 1 finished calls: 1 judge ok.\n" in out
    status, out, _ = run(capsys, "prune", "--finished", "--yes-delete-finished", "--model", "acme/m", "--store", filled)
    assert status == 0 and "Deleted 3 finished calls: 3 answer ok.\n" in out and "Deleted 2 failures" in out


def test_exports_are_for_their_owner(tmp_path):
    path = tmp_path / "calls.jsonl"
    path.write_text("{}", encoding="utf-8")
    path.chmod(0o644)
    with Store(made(tmp_path / "a.sqlite", range(1))) as store:
        store.export(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


# -- recorded calls that were cut -------------------------------------------------------------------------------------


def lines(number: int) -> list[bytes]:
    records = ({"key": hashlib.sha256(bytes([n])).hexdigest(), "status": "ok", "text": f"é {n}"} for n in range(number))
    return [json.dumps(record, ensure_ascii=False).encode() for record in records]


@pytest.mark.parametrize("cut", [1, 30, len(lines(6)[5]) - 5])
def test_a_torn_last_record_costs_no_other(tmp_path, cut):
    path = tmp_path / "calls.jsonl"
    path.write_bytes(b"\n".join([*lines(5), lines(6)[5][:cut]]))
    with pytest.warns(UserWarning, match=r"calls.jsonl line 6: the file ends within this record.* 5 lines"):
        assert len(Recorded(path).finished()) == 5
    with pytest.warns(UserWarning, match="line 6"):
        assert merge(tmp_path / "s.sqlite", [path])[0].added == 5


def test_a_last_record_without_line_end_is_whole(tmp_path):
    (tmp_path / "calls.jsonl").write_bytes(b"\n".join(lines(6)))
    assert len(Recorded(tmp_path).finished()) == 6


def test_a_bad_record_before_the_last_is_an_error(tmp_path):
    good = lines(6)
    for bad in (good[3][:20] + good[4], good[3][:20], b"\xc3" + good[3]):
        (tmp_path / "calls.jsonl").write_bytes(b"\n".join([*good[:3], bad, good[5], b""]))
        with pytest.raises(StoreError, match="calls.jsonl line 4: this is not a whole JSON record"):
            Recorded(tmp_path)
