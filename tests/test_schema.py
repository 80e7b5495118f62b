"""The store's file: older versions go on, spoilt and foreign files are refused, network file systems are known."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from test_store import example, raw, run_child

from structmem import filesystems
from structmem.errors import StoreError
from structmem.recorded import Recorded
from structmem.store import Store


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "new" / "store.sqlite") as store:
        yield store


# -- versions of the file ---------------------------------------------------------------------------------------------

FIRST = """
CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE texts(digest TEXT PRIMARY KEY, text TEXT NOT NULL);
CREATE TABLE calls(key TEXT PRIMARY KEY, status TEXT NOT NULL, status_reason TEXT, text TEXT, reasoning TEXT,
  finish_reason TEXT, truncated INTEGER NOT NULL, model TEXT NOT NULL, served_model TEXT, provider TEXT,
  input_tokens INTEGER, output_tokens INTEGER, cached_tokens INTEGER, reasoning_tokens INTEGER, cost_usd REAL,
  latency_s REAL, called_at TEXT NOT NULL, params_sent TEXT NOT NULL, error TEXT, role TEXT NOT NULL,
  generation INTEGER NOT NULL, replicate INTEGER NOT NULL, attempt INTEGER NOT NULL, messages TEXT NOT NULL,
  params TEXT NOT NULL, options TEXT NOT NULL, memory_set TEXT);
CREATE TABLE failures(id INTEGER PRIMARY KEY, key TEXT NOT NULL, status TEXT NOT NULL, status_reason TEXT, text TEXT,
  reasoning TEXT, finish_reason TEXT, truncated INTEGER NOT NULL, model TEXT NOT NULL, served_model TEXT, provider TEXT,
  input_tokens INTEGER, output_tokens INTEGER, cached_tokens INTEGER, reasoning_tokens INTEGER, cost_usd REAL,
  latency_s REAL, called_at TEXT NOT NULL, params_sent TEXT NOT NULL, error TEXT, role TEXT NOT NULL,
  generation INTEGER NOT NULL, replicate INTEGER NOT NULL, attempt INTEGER NOT NULL, messages TEXT NOT NULL,
  params TEXT NOT NULL, options TEXT NOT NULL, memory_set TEXT);
CREATE INDEX failures_key ON failures(key);
CREATE TABLE memory_hashes(hash TEXT, memory_set TEXT, PRIMARY KEY(hash, memory_set)) WITHOUT ROWID;
CREATE INDEX calls_memory_set ON calls(memory_set) WHERE memory_set IS NOT NULL;
CREATE INDEX failures_memory_set ON failures(memory_set) WHERE memory_set IS NOT NULL;
INSERT INTO meta VALUES ('salt', '0b1d3e5f708192a3b4c5d6e7f8091a2b3c4d5e6f708192a3b4c5d6e7f8091a2b');
INSERT INTO meta VALUES ('schema_version', '1');
PRAGMA user_version = 1;
PRAGMA application_id = 1936549229;
"""
SECOND = """
ALTER TABLE calls ADD COLUMN requests INTEGER;
ALTER TABLE failures ADD COLUMN requests INTEGER;
UPDATE calls SET requests = 7;
UPDATE meta SET value = '2' WHERE key = 'schema_version';
PRAGMA user_version = 2;
"""
OLD = {
    "key": "ab" * 32, "status": "ok", "text": "an old answer", "truncated": 1, "model": "acme/m", "cost_usd": 0.25,
    "called_at": "2025-01-01T00:00:00.000+00:00", "params_sent": '{"temperature": 1.0}', "role": "judge",
    "generation": 2, "replicate": 0, "attempt": 1, "messages": '[["user", "d1", {}]]', "params": "{}", "options": "{}",
}  # fmt: skip


def old_store(path, version=1) -> None:
    """A file as an old version made it, with a finished call and a failure."""
    db = sqlite3.connect(path)
    db.executescript(FIRST)
    db.execute("INSERT INTO texts VALUES ('d1', 'the old question')")
    for table, status in (("calls", "ok"), ("failures", "no_response")):
        values = OLD | {"status": status}
        places = ", ".join("?" * len(values))
        db.execute(f"INSERT INTO {table}({', '.join(values)}) VALUES ({places})", list(values.values()))
    db.commit()
    if version == 2:
        db.executescript(SECOND)
    db.execute("PRAGMA journal_mode = WAL")
    db.close()


def answers(store, requests=None) -> None:
    call = store.get(OLD["key"])
    assert (call.text, call.truncated, call.cost_usd, call.generation) == ("an old answer", True, 0.25, 2)
    assert (call.role, call.attempt, call.params_sent, call.requests) == ("judge", 1, {"temperature": 1.0}, requests)
    assert call.plan_hash is None
    assert store.get_many([OLD["key"]]) == {OLD["key"]: call}
    assert store.messages(call.key) == [{"role": "user", "content": "the old question"}]
    assert store.info()["calls"] == {"judge no_response": 1, "judge ok": 1}
    assert store.last_failure(OLD["key"]).requests is None and len(store.failures()) == 1


@pytest.mark.parametrize(("version", "requests"), [(1, None), (2, 7)])
def test_a_store_of_an_old_version_goes_on(tmp_path, version, requests):
    path = tmp_path / "s.sqlite"
    old_store(path, version)
    with Store(path) as store:
        answers(store, requests)
        assert store.info()["schema_version"] == 3 and store.memory_hash("x") != ""
        store.put(*example(requests=3, plan_hash="0123456789ab"))
        store.put(*example(1, "no_response", requests=5))
    assert raw(store, "PRAGMA user_version") == [(3,)]
    assert raw(store, "SELECT value FROM meta WHERE key = 'schema_version'") == [("3",)]
    with Store(path) as store:
        call = store.get(example()[0].key)
        assert (call.requests, call.plan_hash) == (3, "0123456789ab") and store.failures()[-1].requests == 5
        assert store.get(OLD["key"]).text == "an old answer"


@pytest.mark.parametrize(("version", "requests"), [(1, None), (2, 7)])
def test_a_store_of_an_old_version_can_be_read_as_it_is(tmp_path, version, requests):
    path = tmp_path / "s.sqlite"
    old_store(path, version)
    before = path.read_bytes()
    with Store(path, read_only=True) as store:
        answers(store, requests)
        assert store.info()["schema_version"] == version and store.export(tmp_path / "calls.jsonl") == 1
    assert path.read_bytes() == before and len(list(tmp_path.iterdir())) == 2
    assert Recorded(tmp_path / "calls.jsonl").get(OLD["key"]).text == "an old answer"


@pytest.mark.parametrize("version", [1, 2])
def test_new_and_migrated_files_have_the_same_columns(store, tmp_path, version):
    old_store(tmp_path / "old.sqlite", version)
    with Store(tmp_path / "old.sqlite") as migrated:
        for table in ("calls", "failures", "texts", "memory_hashes", "meta"):
            columns = f"SELECT name, type, \"notnull\", pk FROM pragma_table_info('{table}') ORDER BY name"
            assert raw(store, columns) == raw(migrated, columns)
        indexes = "SELECT name FROM sqlite_master ORDER BY name"
        assert raw(store, indexes) == raw(migrated, indexes)


KILLED = """
import os, sys
sys.path[:0] = [{root!r}]
from structmem import schema, store
old, done = schema.transaction, []

class Dies:
    def __init__(self, db):
        self.db = db
    def execute(self, sql, *values):
        if sql.startswith({last!r}):
            os.kill(os.getpid(), 9)
        return self.db.execute(sql, *values)

prepare = schema.prepare
schema.prepare = lambda db, where: prepare(Dies(db), where)
Dies.in_transaction = property(lambda self: self.db.in_transaction)
store.Store({path!r})
"""


@pytest.mark.parametrize("last", ["ALTER TABLE failures", "UPDATE meta", "COMMIT", "PRAGMA journal_mode"])
def test_a_killed_migration_leaves_a_usable_file(tmp_path, last):
    path = tmp_path / "s.sqlite"
    old_store(path)
    root = os.path.dirname(os.path.dirname(__file__))
    code = KILLED.format(root=root, last=last, path=str(path))
    assert subprocess.run([sys.executable, "-c", code]).returncode == -9
    with Store(path, read_only=True) as store:
        answers(store)
    with Store(path) as store:
        answers(store)
        store.put(*example(requests=2))
        assert store.get(example()[0].key).requests == 2


@pytest.mark.parametrize("old", [True, False])
def test_many_that_open_at_once_prepare_the_file_once(tmp_path, old):
    path = tmp_path / "s.sqlite"
    if old:
        old_store(path)
    code = (
        f"import sys; sys.path[:0] = [{os.path.dirname(os.path.dirname(__file__))!r}]\n"
        "from structmem.store import Store\n"
        f"print('ready', flush=True); sys.stdin.readline(); Store({str(path)!r}).close()"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(4)
    ]
    for child in children:
        child.stdout.readline()
    for child in children:
        child.stdin.write(b"\n")
        child.stdin.flush()
    assert [child.wait(30) for child in children] == [0] * 4
    for child in children:
        child.stdin.close()
        child.stdout.close()
    with Store(path) as store:
        assert store.info()["schema_version"] == 3 and len(store.failures()) == int(old)


# -- files that are no whole store ------------------------------------------------------------------------------------


def foreign_sqlite(path):
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE precious(x)")
    db.commit()
    db.close()


def newer(path):
    Store(path).close()
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 99")
    db.commit()
    db.close()


def zero_tail(pages):
    def spoil(path):
        data = filled(path)
        path.write_bytes(data[: -4096 * pages] + bytes(4096 * pages))

    return spoil


def filled(path) -> bytes:
    with Store(path) as store:
        for number in range(50):
            store.put(*example(number))
    return path.read_bytes()


def emptied(path):
    path.touch()
    Path(str(path) + "-wal").write_bytes(b"what is not yet in the file")


def half(path):
    data = filled(path)
    path.write_bytes(data[: len(data) // 2])


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (
            lambda path: path.write_text("name,value\n1,2\n and some more text", encoding="utf-8"),
            "is not a structmem store",
        ),
        (lambda path: path.write_bytes(b"SQLite format 3\0" + b"\0" * 84), "store"),
        (foreign_sqlite, "is not a structmem store"),
        (newer, "schema version 99, this structmem knows up to 3"),
        (half, "damaged or only half written"),
        (zero_tail(1), "damaged or only half written"),
        (zero_tail(5), "damaged or only half written"),
        (emptied, "damaged or only half written"),
        (lambda path: path.write_bytes(b"SQLite format 3\0"), "store"),
        (lambda path: path.write_bytes(bytes(8192)), "is not a structmem store"),
    ],
)
def test_spoilt_files_are_refused_and_left_alone(tmp_path, spoil, said):
    path = tmp_path / "s.sqlite"
    spoil(path)
    before, mode = path.read_bytes(), path.stat().st_mode
    for read_only in (True, False):
        with pytest.raises(StoreError, match=said):
            Store(path, read_only)
    assert path.read_bytes() == before and (said.startswith("damaged") or path.stat().st_mode == mode)


def test_an_empty_file_becomes_a_store_but_is_none_to_read(tmp_path):
    path = tmp_path / "s.sqlite"
    path.touch()  # as left by a process that was killed while it made a store
    with pytest.raises(StoreError, match="the file is empty"):
        Store(path, read_only=True)
    assert path.read_bytes() == b""
    with Store(path) as store:
        store.put(*example())


def test_room_that_was_never_used_is_no_damage(tmp_path):
    path = tmp_path / "s.sqlite"
    data = filled(path)
    path.write_bytes(data + bytes(3 * 4096))
    with Store(path) as store:
        assert len(store.get_many(example(number)[0].key for number in range(50))) == 50


@pytest.mark.parametrize("harm", ["PRAGMA user_version = 0", "PRAGMA user_version = -1", "DELETE FROM meta"])
@pytest.mark.parametrize("read_only", [False, True])
def test_a_store_without_version_or_salt_is_damaged(tmp_path, harm, read_only):
    Store(tmp_path / "s.sqlite").close()
    db = sqlite3.connect(tmp_path / "s.sqlite", isolation_level=None)
    db.execute(harm)
    db.close()
    with pytest.raises(StoreError, match="damaged"):
        Store(tmp_path / "s.sqlite", read_only)


def test_what_a_killed_process_left_is_closed_to_others(tmp_path):
    path, log = tmp_path / "s.sqlite", tmp_path / "s.sqlite-wal"
    run_child("s = Store(path)\ns.put(*example())\ndie()", path)
    path.chmod(0o644)
    log.chmod(0o644)
    with Store(path) as store:
        assert [file.stat().st_mode & 0o777 for file in tmp_path.iterdir()] == [0o600] * 3
        assert store.info()["calls"] == {"answer ok": 1}


# -- network file systems ---------------------------------------------------------------------------------------------

MOUNTS = """\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 21 0:40 / /mnt/lab rw shared:2 - nfs4 server:/lab rw,vers=4.2
31 30 0:41 / /mnt/lab/scratch rw - xfs /dev/sdb1 rw
32 21 0:42 / /mnt/with\\040space rw master:3 propagate_from:4 - fuse.sshfs me@host: rw
33 21 0:43 / /media rw - autofs systemd-1 rw
34 21 0:44 / /media rw - cifs //host/share rw
35 21 0:45 / /mnt/labs rw - btrfs /dev/sdc1 rw
a line of another form
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/me/s.sqlite", None),
        ("/mnt/lab/s.sqlite", "nfs4"),
        ("/mnt/lab", "nfs4"),
        ("/mnt/lab/a/../b/s.sqlite", "nfs4"),
        ("/mnt/lab/scratch/s.sqlite", None),
        ("/mnt/labs/s.sqlite", None),
        ("/mnt/laboratory/s.sqlite", None),
        ("/mnt/with space/s.sqlite", "fuse.sshfs"),
        ("/media/s.sqlite", "cifs"),
    ],
)
def test_network_file_systems_are_known_by_their_mount(path, kind):
    assert filesystems.network_type(path, MOUNTS) == kind


def test_nothing_is_known_without_a_table_of_mounts(tmp_path, monkeypatch):
    monkeypatch.setattr(filesystems, "MOUNTS", str(tmp_path / "none"))
    assert filesystems.network_type(tmp_path) is None


@pytest.fixture
def on_network(tmp_path, monkeypatch):
    """A folder that seems to be mounted over the network."""
    folder = tmp_path / "share"
    folder.mkdir()
    (tmp_path / "mounts").write_text(f"1 0 8:1 / / rw - ext4 a rw\n2 1 0:9 / {folder} rw - nfs4 b rw\n")

    def mount():
        monkeypatch.setattr(filesystems, "MOUNTS", str(tmp_path / "mounts"))
        return folder / "s.sqlite"

    return folder / "s.sqlite", mount


def test_a_plain_journal_on_a_network_file_system(on_network):
    path = on_network[1]()
    with pytest.warns(UserWarning, match=r"network file system \(nfs4\).*a plain journal is used"):
        store = Store(path)
    with store:
        for number in range(3):
            store.put(*example(number))
        assert [file.name for file in path.parent.iterdir()] == ["s.sqlite"]
        assert store._writer.execute("PRAGMA synchronous").fetchone() == (2,)
        assert store.info()["journal"] == "delete (nfs4 is a network file system)"
        with Store(path, read_only=True) as reader:  # shared, and without a warning
            assert reader.get(example()[0].key).text == "answer 0"
            store.put(*example(3))
            assert reader.get(example(3)[0].key).text == "answer 3"
    assert path.read_bytes()[18:20] == b"\1\1"  # not in WAL mode


@pytest.mark.parametrize("killed", [False, True])
def test_a_store_in_wal_mode_is_changed_over_there(on_network, killed):
    path, mount = on_network
    run_child(
        "s = Store(path); [s.put(*example(n)) for n in range(5)]" + ("; die()" if killed else "; s.close()"), path
    )
    assert Path(f"{path}-wal").exists() == killed and path.read_bytes()[18:20] == b"\2\2"
    mount()
    with Store(path, read_only=True) as store:
        assert store.info()["calls"] == {"answer ok": 5}
    assert path.read_bytes()[18:20] == b"\2\2"
    with pytest.warns(UserWarning, match="network"):
        store = Store(path)
    with store:
        store.put(*example(5))
        assert store.info()["calls"] == {"answer ok": 6} and store.info()["journal"].startswith("delete")
        assert not Path(f"{path}-wal").exists()


def test_a_store_that_is_open_here_is_opened_again_without_touching_its_locks(on_network):
    path = on_network[1]()  # with a plain journal the locks are on the file itself
    with pytest.warns(UserWarning, match="network"):
        store = Store(path)
    with store:
        store._writer.execute("BEGIN IMMEDIATE")
        with Store(path, read_only=True) as reader:
            assert reader.failures() == []
        # Had the file been opened and closed beside SQLite, another process could write now.
        code = f"import sqlite3; sqlite3.connect({str(path)!r}, timeout=0).execute('BEGIN EXCLUSIVE')"
        tried = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert "database is locked" in tried.stderr
        store._writer.execute("ROLLBACK")
