"""The file behind the store of calls: its tables, how it is opened, and what is refused."""

from __future__ import annotations

import os
import secrets
import sqlite3
from pathlib import Path

from .errors import StoreError
from .paths import is_file

APPLICATION_ID = 0x736D656D  # "smem"
SCHEMA_VERSION = 1
BUSY_SECONDS = 60

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
    "attempt": "INTEGER NOT NULL",
}  # fmt: skip
REQUEST_COLUMNS = {
    "messages": "TEXT NOT NULL", "params": "TEXT NOT NULL", "options": "TEXT NOT NULL", "memory_set": "TEXT",
}  # fmt: skip
# One function per old version, each bringing a store one version further: {1: to_version_2, …}.
MIGRATIONS: dict = {}


def check_file(where: str, read_only: bool) -> None:
    """Make a new store's file, for its owner only, and refuse what is no SQLite file."""
    path = Path(where)
    if read_only and not is_file(path):
        raise StoreError(f"There is no store of calls at {path}; run once with offline=False, or give another store.")
    try:
        if not read_only:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Made here, not by SQLite, so that at no moment others can read it; its -wal and -shm follow its mode.
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            os.close(descriptor)
        with open(path, "rb") as file:
            head = file.read(16)
    except (OSError, ValueError) as error:  # ValueError: a null character
        raise StoreError(
            f"The store of calls at {where:.200} cannot be opened for {'reading' if read_only else 'writing'} "
            f"({getattr(error, 'strerror', '') or error}); give another place: "
            "store=PATH or the variable STRUCTMEM_STORE."
        ) from None
    if head and head != b"SQLite format 3\0":
        raise _foreign(where)


def connect(where: str, read_only: bool = False) -> sqlite3.Connection:
    """A connection that any thread may use, one at a time."""
    target = where
    if where != ":memory:":
        target = Path(where).as_uri() + "?mode=rw"
        if read_only and not os.access(Path(where).parent, os.W_OK):
            wal = Path(where + "-wal")
            # Where nothing can be written, SQLite reads a finished WAL store only if told that nobody else writes it.
            target = Path(where).as_uri() + ("?mode=ro" if wal.exists() and wal.stat().st_size else "?immutable=1")
    db = sqlite3.connect(
        target, uri=where != ":memory:", timeout=BUSY_SECONDS, check_same_thread=False, isolation_level=None
    )
    if read_only:  # not mode=ro, which would leave its -wal and -shm files behind
        db.execute("PRAGMA query_only = 1")
    return db


def prepare(db: sqlite3.Connection, where: str) -> None:
    """Make the tables of a new store, or bring an old one up to date; a foreign file is left untouched."""
    if one(db, "PRAGMA application_id") == 0 and one(db, "SELECT count(*) FROM sqlite_master"):
        raise _foreign(where)
    if one(db, "PRAGMA application_id") == 0:
        db.execute("BEGIN IMMEDIATE")
        if one(db, "PRAGMA application_id") == 0:  # another process may have been quicker
            columns = ", ".join(f"{name} {kind}" for name, kind in (CALL_COLUMNS | REQUEST_COLUMNS).items())
            for statement in _SCHEMA.format(columns=columns).split(";"):
                db.execute(statement)
            db.execute("INSERT INTO meta VALUES ('salt', ?)", (secrets.token_hex(32),))
            db.execute("INSERT INTO meta VALUES ('schema_version', ?)", (str(SCHEMA_VERSION),))
            db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute("COMMIT")
    check_version(db, where)
    while (version := one(db, "PRAGMA user_version")) < SCHEMA_VERSION:
        MIGRATIONS[version](db)
    if where != ":memory:" and Path(where).stat().st_mode & 0o177:
        Path(where).chmod(0o600)
    try:
        journal = one(db, "PRAGMA journal_mode = WAL")
    except sqlite3.OperationalError:
        journal = one(db, "PRAGMA journal_mode")
    # In WAL mode NORMAL survives any death of the process; only a power cut can take the last calls.
    db.execute(f"PRAGMA synchronous = {'NORMAL' if journal == 'wal' else 'FULL'}")


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
    elif "malformed" in said or "not a database" in said:
        advice = "the file is damaged or only half written; move it away, or restore a copy."
    elif "readonly" in said or "read-only" in said or "unable to open" in said:
        advice = "it cannot be written; give another place: store=PATH or the variable STRUCTMEM_STORE."
    else:
        advice = "check the disk, or give another store."
    return StoreError(f"The store {where} could not be {what} ({said}): {advice}")


def one(db: sqlite3.Connection, sql: str):
    """The first value of the first row, or None."""
    row = db.execute(sql).fetchone()
    return row[0] if row else None
