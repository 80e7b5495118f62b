"""The store of calls: one SQLite file, content-addressed, in which nothing is overwritten."""

from __future__ import annotations

import atexit
import hashlib
import hmac
import json
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import nullcontext
from functools import lru_cache
from pathlib import Path

from .calls import Call, Request
from .errors import InputError, StoreError
from .filesystems import network_type
from .packing import FIELDS, INSERT, packed, packed_request, selected, unpacked
from .paths import is_dir, real, recorded
from .recorded import Recorded, write_records
from .schema import OPEN, OPEN_LOCK, connect, failure, file_id, one, open_file, transaction

CHECKPOINT_AFTER = 400  # calls, some 16 MB of log
LONGEST_LOG = 20_000  # pages of 4 kB, after which writing waits until the log is in the file
LOOKED_UP_AT_ONCE = 500

_INTO = {table: f"INSERT OR IGNORE INTO {table} {INSERT}" for table in ("calls", "failures")}
_LATEST = "ORDER BY called_at DESC, id DESC LIMIT 1"


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
        # A link's target: SQLite keeps its log beside that, and there it is looked for.
        self.path = str(where) if str(where) == ":memory:" else real(where)
        self._lock = threading.Lock()
        self._queue: list = []
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._written: set = set()  # digests of texts, and memory sets, that are known to be in the file
        self._prunings: str | None = None
        self._since_checkpoint = 0
        self._reader: sqlite3.Connection | None = None
        self._writer: sqlite3.Connection | None = None
        self._quick: sqlite3.Connection | None = None
        self._quick_lock = threading.Lock()
        try:
            self._start()
        except BaseException:
            self._close_connections()
            raise
        self._packed_memories = lru_cache(maxsize=512)(self._pack_memories)
        with OPEN_LOCK:
            OPEN.add(self)

    # -- opening ------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._writer = open_file(self.path, self.read_only)
        self.file_id = file_id(self.path)
        try:
            self._reader = self._writer if self.path == ":memory:" or self.read_only else connect(self.path)
            if not self.read_only and one(self._writer, "PRAGMA journal_mode") == "wal":
                self._quick = connect(self.path)
                self._quick.execute("PRAGMA busy_timeout = 0")
                self._quick.execute("PRAGMA synchronous = NORMAL")
                for connection in (self._quick, self._writer):  # the thread does it: it waits for the disk
                    connection.execute("PRAGMA wal_autocheckpoint = 0")
            self._salt = bytes.fromhex(one(self._writer, "SELECT value FROM meta WHERE key = 'salt'"))
            present = {row[1] for row in self._reader.execute("PRAGMA table_info(calls)")}
        except sqlite3.Error as error:
            raise failure(error, self.path, "opened") from None
        self._select = f"SELECT {selected(FIELDS, present)} FROM"

    # -- reading ------------------------------------------------------------------------------------------------------

    def get(self, key: str) -> Call | None:
        """The finished call (``ok`` or ``rejected``) under `key`, or None."""
        rows = self._rows(f"{self._select} calls WHERE key = ?", (key,))
        return unpacked(rows[0]) if rows else None

    def get_many(self, keys: Iterable[str]) -> dict[str, Call]:
        """The finished calls among `keys`, by key."""
        keys, found = list(dict.fromkeys(keys)), {}
        for start in range(0, len(keys), LOOKED_UP_AT_ONCE):
            part = keys[start : start + LOOKED_UP_AT_ONCE]
            places = ",".join("?" * len(part))
            found.update(
                (row[0], unpacked(row)) for row in self._rows(f"{self._select} calls WHERE key IN ({places})", part)
            )
        return found

    def last_failure(self, key: str) -> Call | None:
        """The ``no_response`` that was called last under `key`, or None."""
        rows = self._rows(f"{self._select} failures WHERE key = ? {_LATEST}", (key,))
        return unpacked(rows[0]) if rows else None

    def failures(self) -> list[Call]:
        """Every ``no_response``, oldest first."""
        return [unpacked(row) for row in self._rows(f"{self._select} failures ORDER BY id")]

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
        network = None if self.path == ":memory:" else network_type(self.path)
        return {
            "path": self.path,
            "journal": self._rows("PRAGMA journal_mode")[0][0]
            + (f" ({network} is a network file system)" if network else ""),
            "schema_version": self._rows("PRAGMA user_version")[0][0],
            "bytes": self._rows("SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()")[0][0],
            "calls": {f"{role} {status}": n for role, status, n in sorted(counts + failures)},
        }

    def export(self, path: str | os.PathLike, keys: Iterable[str] | None = None, failures: bool = True) -> int:
        """Write calls as JSON lines sorted by key, at once or not at all; return their number.

        Records hold answers and metadata, never request texts or memory hashes. With `failures`, the latest
        ``no_response`` of a key without a finished call is there too, so that a replay shows the same rows.
        """
        if self.path != ":memory:" and os.path.exists(path) and os.path.samefile(path, self.path):
            raise InputError(f"{path} is the store itself; give another file for its calls.")
        if os.path.exists(path) and Path(path).suffix != ".jsonl":  # an older export may go, nothing else
            raise InputError(
                f"{path} is there already and is no .jsonl file, so it was left as it is; name the export *.jsonl."
            )
        wanted = None if keys is None else set(keys)
        return write_records(path, (call for call in self._every(failures) if wanted is None or call.key in wanted))

    def _every(self, failures: bool) -> Iterator[Call]:
        latest = f"SELECT id FROM failures AS other WHERE other.key = failures.key {_LATEST}"
        both = f"{self._select} calls" + (
            f" UNION ALL {self._select} failures WHERE id = ({latest}) AND key NOT IN (SELECT key FROM calls)"
            if failures
            else ""
        )
        yield from map(unpacked, self._rows(f"{both} ORDER BY key"))

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
        memory_set, hashes = self._packed_memories(request.memories)
        values, texts = packed_request(request, memory_set)
        row = (*packed(call), *values)
        future: Future = Future()
        item = (_INTO["failures" if call.status == "no_response" else "calls"], row, texts, memory_set, hashes, future)
        if self._write_now(item):
            if self._since_checkpoint >= CHECKPOINT_AFTER:
                self._wake_thread()
        else:
            self._wake_thread(item)
        return future

    def _wake_thread(self, *items: tuple) -> None:
        with self._wake:
            if self._closed and items:
                raise StoreError(f"The store {self.path} is closed.")
            self._queue += items
            if self._thread is None:
                self._thread = threading.Thread(target=self._write_on, name="structmem-store", daemon=True)
                self._thread.start()
            self._wake.notify()

    def _pack_memories(self, memories: tuple[str, ...]) -> tuple[str | None, list[tuple[str, str]]]:
        if not memories:
            return None, []
        hashes = sorted({self.memory_hash(text) for text in memories})
        name = hashlib.sha256(" ".join(hashes).encode()).hexdigest()[:32]
        return name, [(one, name) for one in hashes]

    def memory_hash(self, text: str) -> str:
        """The salted hash of a memory text in this store: 32 hex digits; another store gives another one."""
        return _salted(self._salt, text)

    def memory_hashes(self, text: str) -> list[str]:
        """The salted hashes under which a memory text may be found here: its own, and one for each merged store."""
        salts = self._rows("SELECT value FROM meta WHERE key = 'salt' OR key LIKE 'salt:%' ORDER BY key")
        return [_salted(bytes.fromhex(salt), text) for (salt,) in salts]

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
                self._wake.wait_for(lambda: self._queue or self._closed or self._since_checkpoint >= CHECKPOINT_AFTER)
                batch, self._queue = self._queue, []
            if not batch and self._closed:
                return
            if batch:
                outcome = self._try(batch)
                alone = isinstance(outcome, StoreError) and len(batch) > 1
                for item in batch:  # a call that cannot be written takes no other with it
                    _settle(item[-1], self._try([item]) if alone else outcome)
            if self._since_checkpoint >= CHECKPOINT_AFTER:
                self._checkpoint()

    def _try(self, batch: list) -> bool | StoreError:
        """Write; whatever goes wrong becomes a sentence, since the thread must live on: others wait for it."""
        try:
            return self._write(self._writer, batch)
        except StoreError as error:
            return error
        except Exception as error:
            return failure(error, self.path, "written")

    def _write(self, db: sqlite3.Connection, batch: list) -> bool:
        """Write calls in one transaction; False if the key of any was there before."""
        new = 0
        # :memory: has one connection for both, so that its reads must wait for a transaction to end
        with self._lock if self._reader is self._writer else nullcontext(), transaction(db):
            if self.file_id is not None and not _is_there(self.path, self.file_id):
                raise StoreError(
                    f"The store {self.path} was moved, deleted or replaced while it was open; put it back, or run "
                    "again: calls that came since are not kept."
                )
            prunings = one(db, "SELECT value FROM meta WHERE key = 'prunings'")
            if prunings != self._prunings or len(self._written) > 50_000:
                self._written.clear()
                self._prunings = prunings
            try:
                for into, row, texts, memory_set, hashes, _ in batch:
                    for digest, text in texts:
                        if digest not in self._written:
                            db.execute("INSERT OR IGNORE INTO texts VALUES (?, ?)", (digest, text))
                            self._written.add(digest)
                    if hashes and memory_set not in self._written:
                        db.executemany("INSERT OR IGNORE INTO memory_hashes VALUES (?, ?)", hashes)
                        self._written.add(memory_set)
                    new += db.execute(into, row).rowcount
            except BaseException:
                self._written.clear()
                raise
            self._since_checkpoint += len(batch) if self._quick is not None else 0
        return new == len(batch)

    def _checkpoint(self) -> None:
        """Bring the log into the file, beside the calls that go on being written."""
        self._since_checkpoint = 0
        try:
            _, pages, _ = self._writer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            if pages > LONGEST_LOG:  # it starts anew only when all of it is in the file, so writing pauses once
                with self._quick_lock:
                    self._writer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.Error:  # the calls are safe in the log, and what is wrong shows when the next one is written
            pass

    # -- closing ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Write what is waiting and close the file; doing it twice is fine."""
        with self._wake:
            self._closed = True
            self._wake.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        if self._since_checkpoint:  # another process may have it open, so that closing would not do it
            self._checkpoint()
        self._close_connections()
        with OPEN_LOCK:
            OPEN.discard(self)

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


def _is_there(path: str, found: tuple[int, int]) -> bool:
    try:
        return file_id(path) == found
    except OSError:
        return False


def _salted(salt: bytes, text: str) -> str:
    return hmac.new(salt, text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()[:32]


def _settle(future: Future, outcome: bool | StoreError) -> None:
    if not future.set_running_or_notify_cancel():  # who waited has been interrupted; the call is kept all the same
        return
    if isinstance(outcome, StoreError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


@atexit.register
def _close_all() -> None:
    for store in list(OPEN):
        store.close()
