"""Upkeep of stores: join those of several machines, and prune what is no longer wanted."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from .calls import ROLES
from .errors import InputError, StoreError, choice
from .packing import COLUMNS, INSERT, NO_REQUEST, packed, selected
from .paths import is_dir, real, recorded
from .recorded import Recorded
from .schema import check_pages, failure, one, open_file, transaction

AT_ONCE = 500  # rows
_REPLY = [COLUMNS.index(name) for name in ("status", "status_reason", "text", "reasoning")]
_KEY, _MESSAGES = COLUMNS.index("key"), COLUMNS.index("messages")


@dataclass(frozen=True)
class Merged:
    """What a merge took from one source: numbers of finished calls and failures that were added, of finished calls that
    were there before, and of those among them whose reply in the source is another one."""

    source: str
    added: int
    failures: int
    known: int
    differing: int


@dataclass(frozen=True)
class Pruned:
    """What goes or went: numbers of failures and finished calls by role and status, and, once it has gone (`done`), of
    request texts that nothing needed any more, and the bytes that the file is smaller by."""

    failures: dict[str, int]
    finished: dict[str, int]
    done: bool = False
    texts: int = 0
    bytes: int = 0


# -- merge ------------------------------------------------------------------------------------------------------------


def merge(into: str | os.PathLike, sources: Iterable[str | os.PathLike]) -> list[Merged]:
    """Add the calls of other stores, or of recorded calls, to a store; each source wholly or not at all.

    A finished call that is there already stays as it is. Failures, request texts and memory hashes are added too. The
    hashes of another store are salted with its own salt, which is kept beside ours, so that a memory is still found by
    its text (`Store.memory_hashes`). Recorded calls have neither request texts nor hashes; a store that is merged later
    and holds the same call brings them.

    Parameters
    ----------
    into : path
        The store that grows; made where missing.
    sources : paths
        Stores, ``.jsonl`` files or folders of them, or ``"recorded"``; they are only read.

    Returns
    -------
    list of Merged
        One per source, in the given order. Merging a source again adds nothing.

    Raises
    ------
    StoreError
        If a source is missing, foreign, damaged, from a newer version, or the store itself. All are looked at before
        the first is merged.
    """
    place, found = _place(into), []
    with ExitStack() as stack:
        opened = [stack.enter_context(closing(_source(source, place))) for source in sources]
        db = stack.enter_context(closing(open_file(place)))
        for source in opened:
            try:
                with transaction(db):
                    found.append(source.merge_into(db))
            except sqlite3.Error as error:
                raise failure(error, f"{place} with {source.name}", "merged") from None
    return found


def _place(where: str | os.PathLike) -> str:
    if str(where) in (":memory:", "recorded") or str(where).endswith(".jsonl") or is_dir(where):
        raise InputError(f"{where} is no SQLite file on disk; expected the path of a store, such as data/store.sqlite.")
    return real(Path(where).expanduser())


def _source(where: str | os.PathLike, into: str) -> _File | _Records:
    path = recorded() if str(where) == "recorded" else Path(where).expanduser().absolute()
    if is_dir(path) or path.suffix == ".jsonl":
        return _Records(path)
    if path.exists() and os.path.exists(into) and os.path.samefile(path, into):
        link = "" if real(path) == into else " under another name (a hard link)"
        raise StoreError(f"{path} is the store that is merged into{link}; name the stores of other machines.")
    return _File(path)


class _Source:
    """Calls to be merged."""

    name: str

    def rows(self, table: str) -> Iterator[list[tuple]]:
        """Rows with `COLUMNS`, in parts."""
        raise NotImplementedError

    def merge_into(self, db: sqlite3.Connection) -> Merged:
        added = known = differing = failures = 0
        for part in self.rows("calls"):
            ours = {row[_KEY]: row for row in _those(db, "calls", part)}
            new = [row for row in part if row[_KEY] not in ours]
            both = [(row, ours[row[_KEY]]) for row in part if row[_KEY] in ours]
            db.executemany(f"INSERT INTO calls {INSERT}", new)
            db.executemany(_FILL_IN, [(*row[_MESSAGES:], row[_KEY]) for row, mine in both if _lacks(mine, row)])
            added, known = added + len(new), known + len(both)
            differing += sum(any(row[i] != mine[i] for i in _REPLY) for row, mine in both)
        for part in self.rows("failures"):
            ours = {row[:_MESSAGES] for row in _those(db, "failures", part)}
            new = list({row[:_MESSAGES]: row for row in part if row[:_MESSAGES] not in ours}.values())
            db.executemany(f"INSERT INTO failures {INSERT}", new)
            failures += len(new)
        return Merged(self.name, added, failures, known, differing)

    def close(self) -> None:
        pass


# The request belongs to the key, whatever was replied, so that what ours lacks of it can be taken from the other.
_FILL_IN = "UPDATE calls SET messages = ?, params = ?, options = ?, memory_set = coalesce(memory_set, ?) WHERE key = ?"


def _lacks(mine: tuple, other: tuple) -> bool:
    no_texts = mine[_MESSAGES] == NO_REQUEST[0] != other[_MESSAGES]
    return no_texts or (mine[-1] is None and mine[_MESSAGES] == other[_MESSAGES] and other[-1] is not None)


def _those(db: sqlite3.Connection, table: str, rows: list[tuple]) -> list[tuple]:
    keys = [row[_KEY] for row in rows]
    places = ",".join("?" * len(keys))
    return db.execute(f"SELECT {', '.join(COLUMNS)} FROM {table} WHERE key IN ({places})", keys).fetchall()


class _Records(_Source):
    def __init__(self, path: Path):
        self.name = str(path)
        self._calls = Recorded(path)

    def rows(self, table: str) -> Iterator[list[tuple]]:
        calls = self._calls.failures() if table == "failures" else self._calls.finished()
        for start in range(0, len(calls), AT_ONCE):
            yield [(*packed(call), *NO_REQUEST) for call in calls[start : start + AT_ONCE]]


class _File(_Source):
    def __init__(self, path: Path):
        self.name = real(path)
        self._db = open_file(self.name, read_only=True)
        try:
            check_pages(self.name)
            self._db.execute("BEGIN")  # one state of it, also while another process writes
        except BaseException:
            self._db.close()
            raise

    def rows(self, table: str) -> Iterator[list[tuple]]:
        present = {row[1] for row in self._db.execute(f"PRAGMA table_info({table})")}
        order = " ORDER BY id" if table == "failures" else ""
        rows = self._db.execute(f"SELECT {selected(COLUMNS, present)} FROM {table}{order}")
        while part := rows.fetchmany(AT_ONCE):
            yield part

    def merge_into(self, db: sqlite3.Connection) -> Merged:
        for table in ("texts", "memory_hashes"):
            db.executemany(f"INSERT OR IGNORE INTO {table} VALUES (?, ?)", self._db.execute(f"SELECT * FROM {table}"))
        ours = one(db, "SELECT value FROM meta WHERE key = 'salt'")
        for (salt,) in self._db.execute("SELECT value FROM meta WHERE key = 'salt' OR key LIKE 'salt:%'").fetchall():
            if salt != ours:
                name = f"salt:{hashlib.sha256(salt.encode()).hexdigest()[:16]}"
                db.execute("INSERT OR IGNORE INTO meta VALUES (?, ?)", (name, salt))
        return super().merge_into(db)

    def close(self) -> None:
        self._db.close()


# -- prune ------------------------------------------------------------------------------------------------------------


def prune(
    where: str | os.PathLike,
    *,
    before: str | None = None,
    role: str | None = None,
    model: str | None = None,
    finished: bool = False,
    confirm: Callable[[Pruned], bool] | None = None,
    dry_run: bool = False,
) -> Pruned:
    """Delete failures, with request texts and memory hashes that no call needs any more, and make the file smaller.

    Parameters
    ----------
    where : path
        The store; other processes may go on using it.
    before : str, optional
        Only what was called before this day (``2026-03-31``, in UTC).
    role, model : str, optional
        Only calls of this role, of this model as it was asked for.
    finished : bool
        Delete finished calls too; at least one of `before`, `role` and `model` must say which. They are paid for, and a
        run that needs them makes them again.
    confirm : callable, optional
        Needed with `finished`: asked with what would go, and nothing is deleted unless it returns True.
    dry_run : bool
        Only say what would go; the file is not touched.

    Raises
    ------
    InputError
        If nothing says which finished calls to delete, or the day, role or model is none.
    StoreError
        If there is no such store, or it cannot be written.
    """
    if before is not None:
        try:
            before = date.fromisoformat(before).isoformat()
        except (TypeError, ValueError):
            raise InputError(f"before must be a day such as 2026-03-31, got {before!r}.") from None
    if role is not None and role not in ROLES:
        raise choice("role", role, ROLES)
    if finished and before is role is model is None:
        raise InputError("Finished calls are never all deleted: say which, by role, model or a day before which.")
    if finished and not confirm and not dry_run:
        raise InputError("Finished calls are deleted only when asked twice: pass confirm.")
    given = {"called_at <> '' AND called_at < ?": before, "role = ?": role, "model = ?": model}
    only = " AND ".join(["rowid <= ?", *(condition for condition, value in given.items() if value is not None)])
    values = [value for value in given.values() if value is not None]
    place = _place(where)
    open_file(place, read_only=True).close()  # there, and a store
    try:
        with closing(open_file(place, read_only=dry_run)) as db:
            if model is not None:
                models = "SELECT model FROM calls UNION SELECT model FROM failures"
                if model not in (menu := [name for (name,) in db.execute(models)]):
                    raise choice("model", model, menu)
            # Up to the rows that are there now: what another process adds meanwhile was not asked about.
            prunings = one(db, _PRUNINGS)
            tables = {"failures": [_last_row(db, "failures"), *values]}
            if finished:
                tables["calls"] = [_last_row(db, "calls"), *values]
            counts = {table: _counted(db, table, only, those) for table, those in tables.items()}
            goes = Pruned(counts["failures"], counts.get("calls", {}))
            if dry_run or (goes.finished and confirm(goes) is not True):
                return goes
            return _delete(db, place, goes, tables, only, prunings)
    except sqlite3.Error as error:
        raise failure(error, place, "pruned") from None


def _last_row(db: sqlite3.Connection, table: str) -> int:
    return one(db, f"SELECT max(rowid) FROM {table}") or 0


def _counted(db: sqlite3.Connection, table: str, only: str, values: list) -> dict[str, int]:
    rows = db.execute(f"SELECT role, status, count(*) FROM {table} WHERE {only} GROUP BY 1, 2 ORDER BY 1, 2", values)
    return {f"{role} {status}": count for role, status, count in rows}


def _delete(db: sqlite3.Connection, place: str, goes: Pruned, tables: dict[str, list], only: str, prunings) -> Pruned:
    before = os.path.getsize(place)
    with transaction(db):
        if one(db, _PRUNINGS) != prunings:  # rows have new numbers since, so that the bound means others
            raise StoreError(
                f"The store {place} was pruned by another process meanwhile; nothing was deleted, ask again."
            )
        for table, values in tables.items():
            db.execute(f"DELETE FROM {table} WHERE {only}", values)
        texts = drop_unused(db)
    vacuum(db)
    return replace(goes, done=True, texts=texts, bytes=max(0, before - os.path.getsize(place)))


_PRUNINGS = "SELECT value FROM meta WHERE key = 'prunings'"
_USED_TEXTS = " UNION ".join(
    f"SELECT json_extract(part.value, '$[1]') FROM {table}, json_each({table}.messages) AS part"
    for table in ("calls", "failures")
)
_USED_SETS = " UNION ".join(
    f"SELECT memory_set FROM {table} WHERE memory_set IS NOT NULL" for table in ("calls", "failures")
)


def drop_unused(db: sqlite3.Connection) -> int:
    """Delete request texts and memory hashes that no call needs any more; return the number of texts."""
    texts = db.execute(f"DELETE FROM texts WHERE digest NOT IN ({_USED_TEXTS})").rowcount
    db.execute(f"DELETE FROM memory_hashes WHERE memory_set NOT IN ({_USED_SETS})")
    # Whoever has the store open believes that texts once written are there; this says that they may not be.
    db.execute(
        "INSERT INTO meta VALUES ('prunings', '1') ON CONFLICT(key) DO UPDATE SET value = CAST(value + 1 AS TEXT)"
    )
    return texts


def vacuum(db: sqlite3.Connection) -> bool:
    """Write the file anew, so that nothing of what was deleted is left in it or in its log.

    Returns
    -------
    bool
        Whether the log is empty too; False: another process was reading an older state from it.
    """
    db.execute("VACUUM")
    busy, _, _ = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not busy
