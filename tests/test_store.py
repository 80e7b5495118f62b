"""The store of calls: nothing is overwritten, lost, shown to others or taken from a foreign file."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from structmem import schema
from structmem.calls import Call, Request, request_key
from structmem.errors import InputError, StoreError
from structmem.paths import default_store
from structmem.recorded import Recorded
from structmem.store import Store, open_store

SYSTEM = "a long system prompt " * 1000


def example(number: int = 0, status: str = "ok", **fields) -> tuple[Call, Request]:
    request = Request(
        "acme/m", ({"role": "system", "content": SYSTEM}, {"role": "user", "content": f"question {number}"}), "answer",
        {"temperature": 1.0}, {"api_key": "sk-verysecret", "num_ctx": 8}, memories=("likes tea", f"memory {number}"),
    )  # fmt: skip
    values = {"text": f"answer {number}", "model": "acme/m", "called_at": "2026-01-01T00:00:00+00:00"} | fields
    return Call(request_key(request), status, params_sent={"temperature": 1.0}, **values), request


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "new" / "store.sqlite") as store:
        yield store


def raw(store, sql):
    with sqlite3.connect(store.path) as db:
        rows = db.execute(sql).fetchall()
    db.close()
    return rows


def run_child(code: str, path) -> None:
    """Run code in another process, which may kill itself."""
    here = os.path.dirname(__file__)
    start = (
        f"import os, sys; sys.path[:0] = [{os.path.dirname(here)!r}, {here!r}]; path = {str(path)!r}\n"
        "from test_store import Store, example, schema\n"
        "def die(): os.kill(os.getpid(), 9)\n"
    )
    ended = subprocess.run([sys.executable, "-W", "ignore", "-c", start + code])
    assert ended.returncode in ((-9,) if "die()" in code else (0,))


def test_what_goes_in_comes_out(store):
    call, request = example(
        requests=4, reasoning="because", finish_reason="length", truncated=True, served_model="m-2", provider="acme",
        input_tokens=5, output_tokens=6, cached_tokens=1, reasoning_tokens=2, cost_usd=0.25, latency_s=0.5, error=None,
    )  # fmt: skip
    assert store.get(call.key) is None
    store.put(call, request)
    assert store.get(call.key) == replace(call, from_store=True)
    assert isinstance(store.get(call.key).params_sent["temperature"], float)
    assert store.messages(call.key) == list(request.messages)


def test_nothing_is_overwritten(store):
    call, request = example()
    store.put(call, request)
    store.put(replace(call, text="another"), request)
    assert store.get(call.key).text == "answer 0"


def test_failures_do_not_count_but_can_be_read(store):
    call, request = example(status="no_response", status_reason="timeout", error="slow", text=None)
    store.put(call, request)
    store.put(replace(call, status_reason="error"), request)
    assert store.get(call.key) is None and store.get_many([call.key]) == {}
    assert [c.status_reason for c in store.failures()] == ["timeout", "error"]
    assert store.last_failure(call.key).status_reason == "error"
    assert store.info()["calls"] == {"answer no_response": 2}


def test_shared_texts_are_stored_once(store):
    for number in range(30):
        store.put(*example(number))
    assert raw(store, "SELECT count(*), sum(length(text) > 1000) FROM texts") == [(31, 1)]
    assert os.path.getsize(store.path) < 30 * len(SYSTEM)


def test_credentials_and_memories_are_not_in_the_file(store):
    store.put(*example())
    store.close()
    data = Path(store.path).read_bytes()
    assert b"verysecret" not in data and b"likes tea" not in data and b"num_ctx" in data


def test_memories_are_found_by_their_salted_hash(tmp_path):
    with Store(tmp_path / "a.sqlite") as a, Store(tmp_path / "b.sqlite") as b:
        assert a.memory_hash("likes tea") != b.memory_hash("likes tea")
        for number in range(3):
            a.put(*example(number))
        find = "SELECT count(*) FROM calls JOIN memory_hashes USING(memory_set) WHERE hash = '{}'"
        assert raw(a, find.format(a.memory_hash("likes tea"))) == [(3,)]
        assert raw(a, find.format(a.memory_hash("memory 1"))) == [(1,)]
        assert raw(a, find.format(a.memory_hash("likes coffee"))) == [(0,)]


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_only_the_owner_can_read(tmp_path, umask):
    old = os.umask(umask)
    try:
        with Store(tmp_path / "s.sqlite") as store:
            store.put(*example())
            files = sorted(tmp_path.iterdir())
            assert [f.name for f in files] == ["s.sqlite", "s.sqlite-shm", "s.sqlite-wal"]
            assert {stat.S_IMODE(f.stat().st_mode) for f in files} == {0o600}
    finally:
        os.umask(old)


def test_an_open_file_is_closed_to_others(tmp_path):
    Store(tmp_path / "s.sqlite").close()
    (tmp_path / "s.sqlite").chmod(0o644)
    Store(tmp_path / "s.sqlite").close()
    assert stat.S_IMODE((tmp_path / "s.sqlite").stat().st_mode) == 0o600


def test_places_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(StoreError, match="give another place: store=PATH"):
        Store(tmp_path / "file" / "s.sqlite")
    with pytest.raises(StoreError, match="cannot be opened for writing"):
        Store(tmp_path)
    with pytest.raises(StoreError, match="There is no store of calls"):
        Store(tmp_path / "none.sqlite", read_only=True)
    assert not (tmp_path / "none.sqlite").exists()


def test_full_disk(store):
    store.put(*example())
    for connection in (store._writer, store._quick):
        connection.execute(f"PRAGMA max_page_count = {connection.execute('PRAGMA page_count').fetchone()[0]}")
    big, request = example(1, text="x" * 1_000_000)
    with pytest.raises(StoreError, match="the disk is full; make room and run again"):
        store.put(big, request)
    assert store.get(example(0)[0].key).text == "answer 0"
    for connection in (store._writer, store._quick):
        connection.execute("PRAGMA max_page_count = 1000000")
    store.put(big, request)
    assert store.get(big.key) is not None


def test_read_only_neither_writes_nor_leaves_files(tmp_path):
    path = tmp_path / "s.sqlite"
    with Store(path) as store:
        store.put(*example())
    with Store(path, read_only=True) as store:
        assert store.get(example()[0].key).text == "answer 0"
        with pytest.raises(StoreError, match="for reading only"):
            store.put(*example(1))
    assert [f.name for f in tmp_path.iterdir()] == ["s.sqlite"]


def test_readers_see_a_running_writer(tmp_path):
    with Store(tmp_path / "s.sqlite") as writer:
        writer.put(*example())
        with Store(tmp_path / "s.sqlite", read_only=True) as reader:
            assert reader.get(example()[0].key).text == "answer 0"


def test_plain_journal_where_wal_cannot_work(tmp_path, monkeypatch):
    class NoWal(sqlite3.Connection):
        def execute(self, sql, *values):
            return super().execute("PRAGMA journal_mode = DELETE" if sql.endswith("= WAL") else sql, *values)

    connect = sqlite3.connect
    monkeypatch.setattr(schema.sqlite3, "connect", lambda *a, **k: connect(*a, factory=NoWal, **k))
    with Store(tmp_path / "s.sqlite") as store:
        store.put(*example())
        assert store.info()["journal"] == "delete" and not (tmp_path / "s.sqlite-shm").exists()
        assert store._writer.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
        assert store.get(example()[0].key).text == "answer 0"


@pytest.mark.parametrize("plain", [False, True])
def test_a_stored_call_survives_the_death_of_its_process(tmp_path, plain):
    path = tmp_path / "s.sqlite"
    forced = "schema.network_type = lambda where: 'nfs4'\n" if plain else ""
    run_child(f"{forced}s = Store(path)\nfor n in range(20): s.put(*example(n))\ns.submit(*example(20))\ndie()", path)
    with Store(path) as store:
        kept = store.get_many(example(number)[0].key for number in range(21))
    assert {f"answer {number}" for number in range(20)} <= {call.text for call in kept.values()}


def test_a_store_that_was_killed_is_read_without_changing_it(tmp_path):
    path = tmp_path / "s.sqlite"
    run_child("s = Store(path)\nfor n in range(5): s.put(*example(n))\ndie()", path)
    before = path.read_bytes(), Path(f"{path}-wal").read_bytes()
    with Store(path, read_only=True) as store:
        assert store.info()["calls"] == {"answer ok": 5}
    assert (path.read_bytes(), Path(f"{path}-wal").read_bytes()) == before


def test_a_link_to_a_store_is_that_store(tmp_path):
    (tmp_path / "here").mkdir()
    path, link = tmp_path / "s.sqlite", tmp_path / "here" / "link.sqlite"
    run_child("s = Store(path)\nfor n in range(5): s.put(*example(n))\ndie()", path)
    link.symlink_to(path)
    before = path.read_bytes(), Path(f"{path}-wal").read_bytes()
    with Store(link, read_only=True) as store:  # the log lies beside the file and not beside the link
        assert store.info()["calls"] == {"answer ok": 5} and store.path == str(path)
    assert (path.read_bytes(), Path(f"{path}-wal").read_bytes()) == before
    with Store(link) as store, pytest.raises(InputError, match="is the store itself"):
        store.export(path)
    assert link.is_symlink() and [file.name for file in link.parent.iterdir()] == ["link.sqlite"]


@pytest.mark.parametrize("other", [None, "a copy", "a store of its own"])
def test_a_store_that_is_moved_while_it_is_open_takes_no_more_calls(store, tmp_path, other):
    store.put(*example())
    path, away = Path(store.path), tmp_path / "away.sqlite"
    path.rename(away)
    if other == "a copy":
        path.write_bytes(away.read_bytes())
    elif other:
        Store(tmp_path / "own.sqlite").close()
        (tmp_path / "own.sqlite").rename(path)
    with pytest.raises(StoreError, match="was moved, deleted or replaced while it was open"):
        store.put(*example(1))
    path.unlink(missing_ok=True)
    away.rename(path)
    store.put(*example(2))
    assert store.info()["calls"] == {"answer ok": 2}


def test_the_log_goes_into_the_file_and_starts_anew(tmp_path, monkeypatch):
    monkeypatch.setattr("structmem.store.CHECKPOINT_AFTER", 20)
    monkeypatch.setattr("structmem.store.LONGEST_LOG", 0)
    path = tmp_path / "s.sqlite"
    with Store(path) as store:
        for number in range(20):
            assert store._thread is None
            store.put(*example(number))
        for _ in range(500):  # the thread does it
            if store._since_checkpoint == 0 and not store._quick_lock.locked():
                break
            time.sleep(0.01)
        store._checkpoint()  # again: what the thread did not see
        log = Path(f"{path}-wal").stat().st_size
        for number in range(20, 25):
            store.put(*example(number))
        assert Path(f"{path}-wal").stat().st_size == log > 25 * 4096
        assert store.info()["calls"] == {"answer ok": 25}


def test_a_busy_store_is_written_later(store):
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    call, request = example()
    futures = [store.submit(*example(number)) for number in range(3)]
    assert not any(future.done() for future in futures) and store.get(call.key) is None
    other.execute("COMMIT")
    other.close()
    for future in futures:
        future.result(10)
    assert store.info()["calls"] == {"answer ok": 3}


def test_a_call_that_cannot_be_written_takes_no_other_with_it(store):
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")  # all go to the writing thread, as one batch
    futures = [store.submit(*example(n, **fields)) for n, fields in enumerate(({}, {"error": "\ud800"}, {}))]
    futures[2].cancel()  # who waited was interrupted; the call is kept
    other.execute("COMMIT")
    other.close()
    assert futures[0].result(10) is True
    with pytest.raises(StoreError, match="nothing that a store can hold"):
        futures[1].result(10)
    store.put(*example(3))
    store.close()  # what nobody waits for is written by then
    assert raw(store, "SELECT count(*) FROM calls") == [(3,)]


def test_a_key_that_is_there_already_says_so(store):
    assert store.submit(*example()).result() is True and store.submit(*example()).result() is False


@pytest.mark.parametrize("where", [5, "x" * 5000, "a\0b"])
def test_a_place_that_is_none_is_refused(where):
    with pytest.raises((InputError, StoreError)):
        open_store(where)


def test_a_folder_without_recorded_calls_is_refused(tmp_path):
    with pytest.raises(StoreError, match="holds no recorded calls"):
        open_store(tmp_path)


def test_the_store_of_the_environment_is_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for said, place in (("é/s.sqlite", tmp_path / "é" / "s.sqlite"), ("~/s.sqlite", Path.home() / "s.sqlite")):
        monkeypatch.setenv("STRUCTMEM_STORE", said)
        assert default_store() == place


def test_many_threads(store):
    def work(start):
        for number in range(start, start + 40):
            call, request = example(number)
            store.put(call, request)
            assert store.get(call.key).text == f"answer {number}"

    threads = [threading.Thread(target=work, args=(start,)) for start in (0, 20, 40, 60)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.info()["calls"] == {"answer ok": 100}


CHILD = """
import sys
sys.path[:0] = [{root!r}, {tests!r}]
from test_store import Store, example
with Store({path!r}) as store:
    for number in range({start}, {start} + 150):
        store.put(*example(number))
"""


def test_two_processes_share_one_store(tmp_path):
    here = os.path.dirname(__file__)
    code = [
        CHILD.format(root=os.path.dirname(here), tests=here, path=str(tmp_path / "s.sqlite"), start=start)
        for start in (0, 100)
    ]
    children = [subprocess.Popen([sys.executable, "-c", part]) for part in code]
    assert [child.wait(60) for child in children] == [0, 0]
    with Store(tmp_path / "s.sqlite") as store:
        assert store.info()["calls"] == {"answer ok": 250}


def test_export_and_replay(store, tmp_path):
    for number in range(5):
        store.put(*example(number, finish_reason="stop"))
    failed, request = example(9, "no_response", status_reason="empty", text=None)
    store.put(failed, request)
    path = tmp_path / "out" / "calls.jsonl"
    assert store.export(path) == 6
    lines = path.read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    assert [r["key"] for r in records] == sorted(r["key"] for r in records)
    assert all("cost_usd" not in r and "from_store" not in r for r in records)
    text = path.read_text(encoding="utf-8")
    assert "question" not in text and "system prompt" not in text and store.memory_hash("likes tea") not in text
    for recorded in (Recorded(path), open_store(path.parent), open_store(path)):
        for number in range(5):
            key = example(number)[0].key
            assert recorded.get(key) == store.get(key)
        assert recorded.get(failed.key) is None and recorded.last_failure(failed.key).status_reason == "empty"
        assert recorded.info()["calls"] == {"answer no_response": 1, "answer ok": 5}
    assert store.export(path, keys=[example(3)[0].key]) == 1
    assert len(path.read_text(encoding="utf-8").splitlines()) == 1
    assert [f.name for f in path.parent.iterdir()] == ["calls.jsonl"]


def test_an_export_replaces_an_older_export_and_nothing_else(store, tmp_path):
    store.put(*example())
    with pytest.raises(InputError, match="is the store itself"):
        store.export(store.path)
    assert raw(store, "SELECT count(*) FROM calls") == [(1,)]
    for name in ("notes.txt", "calls.jsonl.gz"):
        (tmp_path / name).write_text("mine", encoding="utf-8")
        with pytest.raises(InputError, match=f"{name} is there already and is no .jsonl file"):
            store.export(tmp_path / name)
        assert (tmp_path / name).read_text(encoding="utf-8") == "mine"
    (tmp_path / "calls.jsonl").write_text("mine", encoding="utf-8")
    assert store.export(tmp_path / "calls.jsonl") == store.export(tmp_path / "new.txt") == 1
    assert len(Recorded(tmp_path / "calls.jsonl").finished()) == 1


def test_a_store_without_a_file_is_exported(tmp_path):
    with Store(":memory:") as store:
        store.put(*example())
        assert store.export(tmp_path / "calls.jsonl") == 1


def test_export_that_fails_keeps_the_old_file(store, tmp_path, monkeypatch):
    store.put(*example())
    path = tmp_path / "calls.jsonl"
    path.write_text("old", encoding="utf-8")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="No space left"):
        store.export(path)
    assert path.read_text(encoding="utf-8") == "old"
    assert sorted(f.name for f in tmp_path.iterdir()) == ["calls.jsonl", "new"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"key": "ab', "not a whole JSON record"),
        ('{"key": "ab", "status": "ok"}', "'key' is not 64 hex digits"),
        ('{"key": "KEY", "status": "fine"}', "'status' is 'fine'"),
        ('{"key": "KEY", "status": "ok", "prompt": "x"}', "unknown field 'prompt'"),
        ('{"key": "KEY", "status": "ok", "cost_usd": NaN}', "not a whole JSON record"),
        ('{"key": "KEY", "status": "ok", "params_sent": ' + "[" * 100_000 + "}", "not a whole JSON record"),
        ('{"key": "KEY", "status": "ok", "text": 5}', "'text' is 5"),
        ('{"key": "KEY", "status": "ok", "truncated": 1}', "'truncated' is 1"),
        ('{"key": "KEY", "status": "ok", "input_tokens": true}', "'input_tokens' is True"),
        ('{"key": "KEY", "status": "ok", "cost_usd": "0.1"}', "'cost_usd' is '0.1'"),
        ('{"key": "KEY", "status": "ok", "called_at": null}', "'called_at' is None"),
        ('{"key": "KEY", "status": "ok", "role": "poet"}', "'role' is 'poet'; expected one of"),
        ('{"key": "KEY", "status": "ok", "text": "a", "text": "a"}', "the field 'text' is there twice"),
        ('{"key": "KEY", "status": "ok", "text": "\\uD83d"}', "half a character"),
        ('{"key": "KEY", "status": "ok", "text": "b"}', "twice with different contents"),
    ],
)
def test_recorded_files_name_the_bad_line(tmp_path, line, said):
    good = json.dumps({"key": "a" * 64, "status": "ok", "text": "a"})
    (tmp_path / "r.jsonl").write_text(f"{good}\n{good}\n{line.replace('KEY', 'a' * 64)}\n", encoding="utf-8")
    with pytest.raises(StoreError, match="r.jsonl line 3: .*" + said):
        Recorded(tmp_path)


def test_many_calls_are_looked_up_at_once(tmp_path):
    with Store(tmp_path / "s.sqlite") as store:
        columns = [*schema.CALL_COLUMNS, *schema.REQUEST_COLUMNS]
        fixed = {"status": "ok", "truncated": 0, "model": "m", "called_at": "t", "params_sent": "{}", "role": "answer",
                 "generation": 0, "replicate": 0, "attempt": 0, "messages": "[]", "params": "{}", "options": "{}",
                 "text": "an answer of some length " * 40}  # fmt: skip
        values = [fixed.get(name) for name in columns]
        keys = [f"{number:064x}" for number in range(10_000)]
        store._writer.execute("BEGIN")
        sql = f"INSERT INTO calls(key, {', '.join(columns)}) VALUES ({', '.join('?' * (len(columns) + 1))})"
        store._writer.executemany(sql, ((key, *values) for key in keys))
        store._writer.execute("COMMIT")
        assert len(store.get_many(keys + ["f" * 64])) == 10_000


def test_closing_twice_and_writing_after(tmp_path):
    store = Store(":memory:")
    store.put(*example())
    assert store.get(example()[0].key).text == "answer 0"
    store.close()
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.put(*example(1))
    with pytest.raises(StoreError, match="closed"):
        store.get("x")
