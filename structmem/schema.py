"""The file behind the store of calls: its tables, how it is opened, and what is refused."""

from __future__ import annotations

import os
import secrets
import sqlite3
import threading
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import StoreError
from .filesystems import network_type
from .paths import is_file

APPLICATION_ID = 0x736D656D  # "smem"
SCHEMA_VERSION = 3
BUSY_SECONDS = 60
# The stores that this process has open, and who may look through them or change them.
OPEN: weakref.WeakSet = weakref.WeakSet()
OPEN_LOCK = threading.Lock()

_SCHEMA = """
CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
-- request texts, each stored once however many calls share it
CREATE TABLE texts(digest TEXT PRIMARY KEY, text TEXT NOT NULL);
-- calls that count: one row per key, status ok or rejected
CREATE TABLE calls(key TEXT PRIMARY KEY, {columns});
-- calls that do not count (no_response), kept for reading
CREATE TABLE failures(id INTEGER PRIMARY KEY, key TEXT NOT NULL, {columns});
CREATE INDEX failures_key ON failures(key);
-- salted hashes of the memories that calls were built from, by memory set: a memory can be found again only by its text
-- (the salts are in meta: "salt" is this store's own, "salt:…" are those of stores that were merged into it)
CREATE TABLE memory_hashes(hash TEXT, memory_set TEXT, PRIMARY KEY(hash, memory_set)) WITHOUT ROWID;
CREATE INDEX calls_memory_set ON calls(memory_set) WHERE memory_set IS NOT NULL;
CREATE INDEX failures_memory_set ON failures(memory_set) WHERE memory_set IS NOT NULL;
"""
CALL_COLUMNS = {
    "status": "TEXT NOT NULL", "status_reason": "TEXT", "text": "TEXT", "reasoning": "TEXT", "finish_reason": "TEXT",
    "truncated": "INTEGER NOT NULL", "model": "TEXT NOT NULL", "served_model": "TEXT", "provider": "TEXT",
    "input_tokens": "INTEGER", "output_tokens": "INTEGER", "cached_tokens": "INTEGER", "reasoning_tokens": "INTEGER",
    "cost_usd": "REAL", "latency_s": "REAL", "called_at": "TEXT NOT NULL", "params_sent": "TEXT NOT NULL",
    "error": "TEXT", "role": "TEXT NOT NULL", "generation": "INTEGER NOT NULL", "replicate": "INTEGER NOT NULL",
    "attempt": "INTEGER NOT NULL", "requests": "INTEGER", "plan_hash": "TEXT",
}  # fmt: skip
REQUEST_COLUMNS = {
    "messages": "TEXT NOT NULL", "params": "TEXT NOT NULL", "options": "TEXT NOT NULL", "memory_set": "TEXT",
}  # fmt: skip


def _to_version_2(db: sqlite3.Connection) -> None:
    for table in ("calls", "failures"):
        db.execute(f"ALTER TABLE {table} ADD COLUMN requests INTEGER")


def _to_version_3(db: sqlite3.Connection) -> None:
    for table in ("calls", "failures"):
        db.execute(f"ALTER TABLE {table} ADD COLUMN plan_hash TEXT")


# One function per old version, each bringing a store one version further.
MIGRATIONS = {1: _to_version_2, 2: _to_version_3}


def open_file(where: str, read_only: bool = False) -> sqlite3.Connection:
    """The first connection to a store: what is no store is refused; to write, the file is made or brought up to date.

    Raises
    ------
    StoreError
        If the place cannot be used, or the file is foreign, damaged or from a newer version.
    """
    if where != ":memory:":
        check_file(where, read_only)
    db = None
    try:
        db = connect(where, read_only)
        if not read_only:
            prepare(db, where)
        check_version(db, where)
        return db
    except BaseException as error:
        if db is not None:
            db.close()
        if isinstance(error, sqlite3.Error):
            raise failure(error, where, "opened") from None
        raise


def check_file(where: str, read_only: bool) -> None:
    """Make a new store's file, for its owner only, and refuse what is no SQLite file."""
    path = Path(where)
    if read_only and not is_file(path):
        raise StoreError(
            f"There is no store of calls at {path}; the first run that asks a model makes it. Or name another "
            "(--store PATH, or STRUCTMEM_STORE)."
        )
    try:
        if not read_only and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            # Made here, not by SQLite, so that at no moment others can read it; its -wal and -shm follow its mode.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        log = _waiting(where, "-wal")
        with OPEN_LOCK:
            stores = list(OPEN)
        if file_id(where) in [store.file_id for store in stores]:
            return  # looked at then; closing a file that SQLite has open in this process would drop its locks
        with open(path, "rb") as file:
            head = file.read(16)
            file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
            tail = file.read()
    except (OSError, ValueError) as error:  # ValueError: a null character
        raise StoreError(
            f"The store of calls at {where:.200} cannot be opened for {'reading' if read_only else 'writing'} "
            f"({getattr(error, 'strerror', '') or error}); give another place: "
            "store=PATH or the variable STRUCTMEM_STORE."
        ) from None
    if not head and (log or read_only):  # SQLite would take it for a new file, and delete the log
        raise failure(sqlite3.DatabaseError("malformed: the file is empty"), where, "opened")
    if head and head != b"SQLite format 3\0":
        raise _foreign(where)
    if head and not any(tail):  # as a crash of the machine may leave it; SQLite would notice only when it reads there
        check_pages(where)


def file_id(where: str) -> tuple[int, int] | None:
    """What makes two names the same file; None for ``":memory:"``."""
    if where == ":memory:":
        return None
    found = os.stat(where)
    return found.st_dev, found.st_ino


def check_pages(where: str) -> None:
    """Refuse a file in which SQLite finds damage; reads all of it (about a second for 300 MB)."""
    db = None
    try:
        db = connect(where, True)
        if (found := one(db, "PRAGMA quick_check(1)")) != "ok":
            raise sqlite3.DatabaseError(f"malformed: {' '.join(str(found).split()):.100}")
    except sqlite3.Error as error:
        raise failure(error, where, "opened") from None
    finally:
        if db is not None:
            db.close()


def connect(where: str, read_only: bool = False) -> sqlite3.Connection:
    """A connection that any thread may use, one at a time."""
    target = where
    if where != ":memory:":
        network = network_type(where)
        target = Path(where).as_uri() + f"?{_how(where) if read_only and not network else 'mode=rw'}"
    db = sqlite3.connect(
        target, uri=where != ":memory:", timeout=BUSY_SECONDS, check_same_thread=False, isolation_level=None
    )
    if where != ":memory:" and network:
        db.execute("PRAGMA locking_mode = EXCLUSIVE")  # a log can be read without shared memory by one process alone
        if one(db, "PRAGMA journal_mode") != "wal":
            _share(db)
    if read_only:
        db.execute("PRAGMA query_only = 1")
    return db


def _how(where: str) -> str:
    """How SQLite reads a file without changing anything: it, its log, or which files there are."""
    if _waiting(where, "-wal"):
        return "mode=ro"  # else the last to close would write the log into the file
    if os.access(Path(where).parent, os.W_OK):
        return "mode=rw"  # mode=ro would leave an empty log behind
    # Where nothing can be written, SQLite reads a finished WAL store only if told that nobody else writes it.
    return "mode=ro" if _waiting(where, "-journal") else "immutable=1"


def _waiting(where: str, suffix: str) -> bool:
    """Whether a file beside the store holds what is not yet in it."""
    beside = Path(where + suffix)
    return beside.exists() and beside.stat().st_size > 0


def _share(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA locking_mode = NORMAL")
    one(db, "SELECT count(*) FROM sqlite_master")  # the lock is given back with the next access


def prepare(db: sqlite3.Connection, where: str) -> None:
    """Make the tables of a new store, or bring an old one up to date; a foreign file is left untouched."""
    # In one statement: between two, another process may make the tables.
    state = "SELECT application_id, (SELECT count(*) FROM sqlite_master) FROM pragma_application_id"
    application, tables = db.execute(state).fetchone()
    if application == 0 and tables:
        raise _foreign(where)
    if application == 0:
        with transaction(db):
            if one(db, "PRAGMA application_id") == 0:  # another process may have been quicker
                columns = ", ".join(f"{name} {kind}" for name, kind in (CALL_COLUMNS | REQUEST_COLUMNS).items())
                for statement in _SCHEMA.format(columns=columns).split(";"):
                    db.execute(statement)
                db.execute("INSERT INTO meta VALUES ('salt', ?)", (secrets.token_hex(32),))
                db.execute("INSERT INTO meta VALUES ('schema_version', ?)", (str(SCHEMA_VERSION),))
                db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
                db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    check_version(db, where)
    if one(db, "PRAGMA user_version") < SCHEMA_VERSION:
        with transaction(db):  # whoever is killed here, or comes second, finds one version or the other whole
            while (version := one(db, "PRAGMA user_version")) < SCHEMA_VERSION:
                MIGRATIONS[version](db)
                db.execute(f"PRAGMA user_version = {version + 1}")
                db.execute("UPDATE meta SET value = ? WHERE key = 'schema_version'", (str(version + 1),))
    if where != ":memory:":
        for path in (Path(where), *(Path(where + suffix) for suffix in ("-wal", "-shm"))):
            if path.exists() and path.stat().st_mode & 0o177:
                path.chmod(0o600)
    _set_journal(db, where)


def _set_journal(db: sqlite3.Connection, where: str) -> None:
    kind = None if where == ":memory:" else network_type(where)
    if kind:
        db.execute("PRAGMA journal_mode = DELETE")
        _share(db)
        warnings.warn(
            f"The store {where} lies on a network file system ({kind}), where SQLite's write-ahead log does not work: "
            "a plain journal is used, which is slower. A store on a local disk is better; "
            "'structmem store merge' joins the stores of several machines.",
            stacklevel=2,
        )
    try:
        journal = one(db, f"PRAGMA journal_mode{'' if kind else ' = WAL'}")
    except sqlite3.OperationalError:
        journal = one(db, "PRAGMA journal_mode")
    # In WAL mode NORMAL survives any death of the process; only a power cut can take the last calls.
    db.execute(f"PRAGMA synchronous = {'NORMAL' if journal == 'wal' else 'FULL'}")


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Write all of a block or nothing; only one process writes at a time."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def check_version(db: sqlite3.Connection, where: str) -> None:
    """Refuse a foreign file, a damaged one and a newer version."""
    if one(db, "PRAGMA application_id") != APPLICATION_ID:
        raise _foreign(where)
    found = one(db, "PRAGMA user_version")
    if found > SCHEMA_VERSION:
        raise StoreError(
            f"The store {where} has schema version {found}, this structmem knows up to {SCHEMA_VERSION}; "
            "update structmem, or give another store."
        )
    if found < 1 or not one(db, "SELECT value FROM meta WHERE key = 'salt'"):
        raise failure(sqlite3.DatabaseError("malformed: no version or no salt"), where, "opened")


def _foreign(where: str) -> StoreError:
    return StoreError(f"{where} is not a structmem store; it was left as it is. Give another path for the store.")


def failure(error: Exception, where: str, what: str) -> StoreError:
    """The sentence for an error of SQLite, or of a value that it cannot hold."""
    said = str(error)
    if not isinstance(error, sqlite3.DatabaseError):
        advice = "a value of the call is nothing that a store can hold."
    elif "full" in said:
        advice = "the disk is full; make room and run again: finished calls are kept."
    elif "locked" in said or "busy" in said:
        advice = f"another process held it for over {BUSY_SECONDS} s; run again when that one is done."
    elif ("malformed" in said or "disk I/O" in said) and _has_links(where):
        advice = (
            "the file has several names (hard links), and its log may lie beside another one; give that name, or "
            "restore a copy if it is damaged."
        )
    elif "malformed" in said or "not a database" in said:
        advice = "the file is damaged or only half written; move it away, or restore a copy."
    elif "readonly" in said or "read-only" in said or "unable to open" in said:
        advice = "it cannot be written; give another place: store=PATH or the variable STRUCTMEM_STORE."
    else:
        advice = "check the disk, or give another store."
    return StoreError(f"The store {where} could not be {what} ({said}): {advice}")


def _has_links(where: str) -> bool:
    try:
        return os.stat(where).st_nlink > 1
    except (OSError, ValueError):
        return False


def one(db: sqlite3.Connection, sql: str):
    """The first value of the first row, or None."""
    row = db.execute(sql).fetchone()
    return row[0] if row else None
