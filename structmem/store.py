"""The store of calls: one SQLite file, content-addressed, in which nothing is overwritten."""

from __future__ import annotations

import atexit
import hashlib
import hmac
import json
import os
import sqlite3
import threading
import weakref
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from functools import lru_cache
from pathlib import Path

from .calls import Call, Request, asked, canonical, text_digest
from .errors import InputError, StoreError
from .paths import is_dir, recorded
from .recorded import Recorded, write_records
from .schema import (
    CALL_COLUMNS,
    REQUEST_COLUMNS,
    SCHEMA_VERSION,
    check_file,
    check_version,
    connect,
    failure,
    one,
    prepare,
)

_FIELDS = ("key", *CALL_COLUMNS)
_ALL = (*_FIELDS, *REQUEST_COLUMNS)
_SELECT = f"SELECT {', '.join(_FIELDS)} FROM"
_INSERT = f"({', '.join(_ALL)}) VALUES ({', '.join('?' * len(_ALL))})"

_open: weakref.WeakSet = weakref.WeakSet()


def open_store(where: str | os.PathLike | Store | Recorded, read_only: bool = False) -> Store | Recorded:
    """The store at `where`: a folder or ``.jsonl`` file of recorded calls (``"recorded"``: the project's) is read-only,
    anything else is SQLite."""
    if isinstance(where, Store | Recorded):
        return where
    if not isinstance(where, str | os.PathLike):
        raise InputError(f"store must be a path, ':memory:', 'recorded' or a Store, got {where!r}.")
    path = recorded() if where == "recorded" else Path(where).expanduser()
    return Recorded(path) if is_dir(path) or path.suffix == ".jsonl" else Store(path, read_only)


class Store:
    """Calls in one SQLite file that only its owner can read.

    Parameters
    ----------
    where : path or ``":memory:"``
        Made with its folders where missing, unless `read_only`.
    read_only : bool
        Open an existing file without changing what it holds.

    Raises
    ------
    StoreError
        If the place cannot be written, or the file is foreign, damaged or from a newer version.

    Notes
    -----
    Every method may be called from any thread, and several processes may share one file. A finished call is on its way
    to the disk's cache before `put` returns, so killing the process afterwards does not lose it.
    """

    def __init__(self, where: str | os.PathLike, read_only: bool = False):
        self.read_only = read_only
        self.path = str(where) if str(where) == ":memory:" else str(Path(where).absolute())
        self._lock = threading.Lock()
        self._queue: list = []
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._texts_written: set[str] = set()
        self._reader: sqlite3.Connection | None = None
        self._writer: sqlite3.Connection | None = None
        self._quick: sqlite3.Connection | None = None
        self._quick_lock = threading.Lock()
        try:
            self._start()
        except BaseException:
            self._close_connections()
            raise
        self.memory_set = lru_cache(maxsize=512)(self._memory_set)
        _open.add(self)

    # -- opening ------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        if self.path != ":memory:":
            check_file(self.path, self.read_only)
        try:
            self._writer = connect(self.path, self.read_only)
            if not self.read_only:
                prepare(self._writer, self.path)
            check_version(self._writer, self.path)
            self._reader = self._writer if self.path == ":memory:" or self.read_only else connect(self.path)
            if not self.read_only and one(self._writer, "PRAGMA journal_mode") == "wal":
                self._quick = connect(self.path)
                self._quick.execute("PRAGMA busy_timeout = 0")
                self._quick.execute("PRAGMA synchronous = NORMAL")
            self._salt = bytes.fromhex(one(self._writer, "SELECT value FROM meta WHERE key = 'salt'"))
        except sqlite3.Error as error:
            raise failure(error, self.path, "opened") from None

    # -- reading ------------------------------------------------------------------------------------------------------

    def get(self, key: str) -> Call | None:
        """The finished call (``ok`` or ``rejected``) under `key`, or None."""
        rows = self._rows(f"{_SELECT} calls WHERE key = ?", (key,))
        return _call(rows[0]) if rows else None

    def get_many(self, keys: Iterable[str]) -> dict[str, Call]:
        """The finished calls among `keys`, by key."""
        keys, found = list(dict.fromkeys(keys)), {}
        for start in range(0, len(keys), 500):
            part = keys[start : start + 500]
            for row in self._rows(f"{_SELECT} calls WHERE key IN ({','.join('?' * len(part))})", part):
                found[row[0]] = _call(row)
        return found

    def last_failure(self, key: str) -> Call | None:
        """The latest ``no_response`` under `key`, or None."""
        rows = self._rows(f"{_SELECT} failures WHERE key = ? ORDER BY id DESC LIMIT 1", (key,))
        return _call(rows[0]) if rows else None

    def failures(self) -> list[Call]:
        """Every ``no_response``, oldest first."""
        return [_call(row) for row in self._rows(f"{_SELECT} failures ORDER BY id")]

    def messages(self, key: str) -> list[dict]:
        """The request's messages as sent for the finished call under `key`; empty if there is none."""
        rows = self._rows("SELECT messages FROM calls WHERE key = ?", (key,))
        parts = json.loads(rows[0][0]) if rows else []
        return [
            {**rest, "role": role, "content": self._rows("SELECT text FROM texts WHERE digest = ?", (digest,))[0][0]}
            for role, digest, rest in parts
        ]

    def info(self) -> dict:
        """Path, journal mode, schema version, size in bytes, and numbers of calls by role and status."""
        counts = self._rows("SELECT role, status, count(*) FROM calls GROUP BY 1, 2")
        failures = self._rows("SELECT role, status, count(*) FROM failures GROUP BY 1, 2")
        return {
            "path": self.path,
            "journal": self._rows("PRAGMA journal_mode")[0][0],
            "schema_version": SCHEMA_VERSION,
            "bytes": self._rows("SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()")[0][0],
            "calls": {f"{role} {status}": n for role, status, n in sorted(counts + failures)},
        }

    def export(self, path: str | os.PathLike, keys: Iterable[str] | None = None, failures: bool = True) -> int:
        """Write calls as JSON lines sorted by key, at once or not at all; return their number.

        Records hold answers and metadata, never request texts or memory hashes. With `failures`, the latest
        ``no_response`` of a key without a finished call is there too, so that a replay shows the same rows.
        """
        wanted = None if keys is None else set(keys)
        return write_records(path, (call for call in self._every(failures) if wanted is None or call.key in wanted))

    def _every(self, failures: bool) -> Iterator[Call]:
        latest = "SELECT max(id) FROM failures WHERE key NOT IN (SELECT key FROM calls) GROUP BY key"
        both = f"{_SELECT} calls" + (f" UNION ALL {_SELECT} failures WHERE id IN ({latest})" if failures else "")
        yield from map(_call, self._rows(f"{both} ORDER BY key"))

    def _rows(self, sql: str, values: Iterable = ()) -> list[tuple]:
        try:
            with self._lock:
                if self._reader is None:
                    raise StoreError(f"The store {self.path} is closed.")
                return self._reader.execute(sql, tuple(values)).fetchall()
        except sqlite3.Error as error:
            raise failure(error, self.path, "read") from None

    # -- writing ------------------------------------------------------------------------------------------------------

    def put(self, call: Call, request: Request) -> None:
        """Store a call and wait until it is written; a key that is there already is left as it is."""
        self.submit(call, request).result()

    def submit(self, call: Call, request: Request) -> Future:
        """Store a call; the future is done when it is written, and is False if one of its key may have been there.

        In WAL mode that is mostly before this returns (a tenth of a millisecond, no disk is waited for). Where another
        process is writing, or each transaction waits for the disk, a thread does it, with what else has come by then.
        """
        if self.read_only:
            raise StoreError(f"The store {self.path} was opened for reading only.")
        row, texts, hashes = self._row(call, request)
        future: Future = Future()
        item = (call.status == "no_response", row, texts, hashes, future)
        if self._write_now(item):
            return future
        with self._wake:
            if self._closed:
                raise StoreError(f"The store {self.path} is closed.")
            self._queue.append(item)
            if self._thread is None:
                self._thread = threading.Thread(target=self._write_on, name="structmem-store", daemon=True)
                self._thread.start()
            self._wake.notify()
        return future

    def _row(self, call: Call, request: Request) -> tuple:
        texts, parts = [], []
        for message in request.messages:
            content = message["content"]
            content = content if isinstance(content, str) else canonical(content)
            digest = text_digest(content)
            texts.append((digest, content))
            parts.append(
                [message.get("role"), digest, {k: v for k, v in message.items() if k not in ("role", "content")}]
            )
        memory_set, hashes = self.memory_set(request.memories)
        values = [getattr(call, name) for name in _FIELDS]
        values[_FIELDS.index("params_sent")] = _dumps(call.params_sent)
        row = (
            *values,
            _dumps(parts),
            _dumps(asked(request.params)),
            _dumps(asked(request.options)),
            memory_set,
        )
        return row, texts, hashes

    def _memory_set(self, memories: tuple[str, ...]) -> tuple[str | None, list[tuple[str, str]]]:
        if not memories:
            return None, []
        hashes = sorted({self.memory_hash(text) for text in memories})
        name = hashlib.sha256(" ".join(hashes).encode()).hexdigest()[:32]
        return name, [(one, name) for one in hashes]

    def memory_hash(self, text: str) -> str:
        """The salted hash of a memory text in this store: 32 hex digits; another store gives another one."""
        return hmac.new(self._salt, text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()[:32]

    def _write_now(self, item: tuple) -> bool:
        if self._queue or not self._quick_lock.acquire(blocking=False):
            return False
        try:
            if self._quick is None:
                return False
            new = self._write(self._quick, [item])
        except Exception:  # busy, or something the thread will meet and name
            return False
        finally:
            self._quick_lock.release()
        item[-1].set_result(new)
        return True

    def _write_on(self) -> None:
        while True:
            with self._wake:
                while not self._queue and not self._closed:
                    self._wake.wait()
                batch, self._queue = self._queue, []
            if not batch:
                return
            outcome = self._try(batch)
            alone = isinstance(outcome, StoreError) and len(batch) > 1
            for item in batch:  # a call that cannot be written takes no other with it
                _settle(item[-1], self._try([item]) if alone else outcome)

    def _try(self, batch: list) -> bool | StoreError:
        """Write; whatever goes wrong becomes a sentence, since the thread must live on: others wait for it."""
        try:
            return self._write(self._writer, batch)
        except Exception as error:
            return failure(error, self.path, "written")

    def _write(self, db: sqlite3.Connection, batch: list) -> bool:
        """Write calls in one transaction; False if the key of any was there before."""
        new = 0
        new_texts = {
            digest: text for _, _, texts, *_ in batch for digest, text in texts if digest not in self._texts_written
        }
        # :memory: has one connection for both, so that its reads must wait for a transaction to end
        with self._lock if self._reader is self._writer else threading.Lock():
            db.execute("BEGIN IMMEDIATE")
            try:
                db.executemany("INSERT OR IGNORE INTO texts VALUES (?, ?)", new_texts.items())
                db.executemany(
                    "INSERT OR IGNORE INTO memory_hashes VALUES (?, ?)",
                    {pair for *_, hashes, _ in batch for pair in hashes},
                )
                for table in ("calls", "failures"):
                    rows = [row for failed, row, *_ in batch if failed == (table == "failures")]
                    new += max(0, db.executemany(f"INSERT OR IGNORE INTO {table} {_INSERT}", rows).rowcount)
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
        if len(self._texts_written) > 50_000:
            self._texts_written.clear()
        self._texts_written.update(new_texts)
        return new == len(batch)

    # -- closing ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Write what is waiting and close the file; doing it twice is fine."""
        with self._wake:
            self._closed = True
            self._wake.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._close_connections()

    def _close_connections(self) -> None:
        with self._lock, self._quick_lock:
            for connection in {self._reader, self._quick, self._writer} - {None}:
                connection.close()
            self._reader = self._quick = self._writer = None

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def __del__(self):
        if getattr(self, "_thread", None) is None and hasattr(self, "_writer"):
            self._close_connections()


def _settle(future: Future, outcome: bool | StoreError) -> None:
    if not future.set_running_or_notify_cancel():  # who waited has been interrupted; the call is kept all the same
        return
    if isinstance(outcome, StoreError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


# JSON of values as they were given: unlike in the key, 1.0 stays 1.0; numpy scalars become numbers.
_dumps = json.JSONEncoder(sort_keys=True, ensure_ascii=False, default=lambda scalar: scalar.item()).encode


@lru_cache(maxsize=4096)
def _loads(text: str) -> dict:
    return json.loads(text)


def _call(row: tuple) -> Call:
    values = dict(zip(_FIELDS, row, strict=True))
    values["truncated"] = bool(values["truncated"])
    values["params_sent"] = dict(_loads(values["params_sent"]))
    return Call(**values, from_store=True)


@atexit.register
def _close_all() -> None:
    for store in list(_open):
        store.close()
