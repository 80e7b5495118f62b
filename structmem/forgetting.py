"""Forget a memory: what was made with it leaves the store, results and books; what cannot be cleaned is named."""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections import Counter
from collections.abc import Iterator, Set
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from . import bookfiles
from .blanking import Rows, Tables, is_results
from .data import Entry, load_entries
from .echo import _UNSPACED
from .errors import InputError, SetupError, StoreError
from .leftovers import Left, left_in
from .paths import default_store, in_project, is_file, root
from .records import read_text
from .schema import connect, failure, open_file, transaction
from .store import _salted
from .traces import Trace, canonical
from .tree import UNCLASSIFIED, Node
from .upkeep import _place, drop_unused, vacuum

_ENTRY_MEMORY = re.compile(r"(?P<entry>.+-[0-9a-f]{12}(?:-\d+)?):(?P<position>\d+)")
_ID = re.compile(r"\d+|[^\s:]+:[^\s:]\S*")  # a number, a store's name and an id in it
_KINDS = {"answer": "answers", "judge": "verdicts", "embedding": "embeddings"}  # every other role sorts
_SAID = ("text", "reasoning", "error", "status_reason", "params", "options", "params_sent")
AT_ONCE = 500


@dataclass(frozen=True)
class Held:
    """What a store holds of a memory.

    ``calls`` by kind (answers, verdicts, partitions, embeddings), failed ones included; ``sent_to`` by model, without
    the structurer that runs here; ``elsewhere``: calls that hold its words inside something longer; ``unseen``: calls
    that came from recorded files, without a request in which a memory could be found.
    """

    path: str
    keys: frozenset[str] = frozenset()
    calls: dict[str, int] = field(default_factory=dict)
    sent_to: dict[str, int] = field(default_factory=dict)
    elsewhere: int = 0
    unseen: int = 0


@dataclass(frozen=True)
class Found:
    """Where a memory is: what `forget` cleans, and what it cannot (`left`; None: not looked for)."""

    trace: Trace
    held: Held
    rows: list[Rows]
    books: dict[Path, int]
    left: list[Left] | None

    @property
    def n(self) -> int:
        """Calls, rows and memories of books that would go."""
        return sum(self.held.calls.values()) + sum(rows.n for rows in self.rows) + sum(self.books.values())


@dataclass(frozen=True)
class Place:
    """Where to look for a memory.

    Parameters
    ----------
    store : path, optional
        Default: ``STRUCTMEM_STORE``, else ``data/store.sqlite`` in the project. None of that name: no store.
    results : list of paths, optional
        Results files or folders of them; default: ``data/results`` in the project, with its subfolders.
    books : list of paths
        Files of memory books.
    entries : path, optional
        Own entries in which an id ``ENTRY:POSITION`` is looked up, besides the examples and PersistBench.
    parts : bool
        Also what holds the memory's words inside something longer.
    """

    store: str | os.PathLike | None = None
    results: tuple = ()
    books: tuple = ()
    entries: str | os.PathLike | None = None
    parts: bool = False


# -- which memory -----------------------------------------------------------------------------------------------------


def memory_text(given: str, place: Place, typed: bool = True) -> str:
    """The text of the memory that an id or a text means.

    An id is that of a memory in one of the books, or where that memory came from: its source (``mem0:…``), or the id
    alone that it has there; or ``ENTRY_ID:POSITION`` (position from 1) of an entry in `entries`, the examples or
    PersistBench. Anything else is the memory's text, unless it was `typed` and looks like an id: a number,
    ``word:rest`` without blanks, or, beside books, one word.

    Raises
    ------
    InputError
        For a blank text, an id that is nowhere or means several memories, an entry or a position that is not there.
    """
    name, held = given.strip(), [memory for path in place.books for memory in _book(path).memories]
    for names in (
        lambda memory: {memory.id},
        lambda memory: {memory.source, f"{memory.source}:{memory.id}"},
        lambda memory: {memory.source.partition(":")[2]} if memory.source else set(),
    ):
        found = [memory for memory in held if name and name in names(memory)]
        if len({canonical(memory.text) for memory in found}) > 1:
            ids = ", ".join(repr(memory.id) for memory in found[:10])
            raise InputError(f"{name!r:.80} names {len(found)} memories of the books, with the ids {ids}; give one id.")
        if found:
            return found[0].text
    if named := _ENTRY_MEMORY.fullmatch(given.strip()):
        for entry in _entries(place):
            if entry.entry_id == named["entry"]:
                position = int(named["position"])
                if not 1 <= position <= len(entry.memories):
                    raise InputError(f"{named['entry']} has memories 1 to {len(entry.memories)}, got {position}.")
                return entry.memories[position - 1].text
        raise InputError(
            f"No entry {named['entry']!r} in the examples, PersistBench or --entries; name the file of your entries "
            "(--entries FILE), or give the memory's text."
        )
    if not canonical(given):
        raise InputError("The memory to forget is blank; expected its id, its whole text, or - for standard input.")
    if typed and re.fullmatch(rf"[^\s{_UNSPACED}]+", name) and (place.books or _ID.fullmatch(name)):
        books = ", ".join(Path(path).name for path in place.books)
        raise InputError(
            (f"{books} has no" if books else "No book was given (--book FILE), and no entry has a")
            + f" memory with the id or source {name!r:.80}; if it is the text itself, give it on standard input (-)."
        )
    return given


def _entries(place: Place) -> Iterator[Entry]:
    for source in filter(None, (place.entries, "examples", "persistbench")):
        try:
            yield from load_entries(source)
        except SetupError:  # the benchmark is not installed
            continue


def _book(path: str | os.PathLike) -> bookfiles.Saved:
    return bookfiles.loaded(read_text(path), Path(path).name)


# -- where it is ------------------------------------------------------------------------------------------------------


def find_memory(text: str, place: Place, look_through: bool = True) -> Found:
    """Say where a memory is, and change nothing.

    Whole memories are found: the text as it is, in every escape in which structmem writes it, after Unicode NFC and
    with any blanks between its words; a memory that is a part of others is not found in those. All that a model was
    asked with such a memory in the request goes with it, since it may repeat it in other words: partitions, answers,
    verdicts on them, embeddings. With ``place.parts`` also whatever holds its words inside something longer.

    Parameters
    ----------
    text : str
        The memory.
    place : Place
    look_through : bool
        Whether to look through the project for files that cannot be cleaned.

    Raises
    ------
    InputError, StoreError
        For files that are none, a damaged store; for ``place.parts`` with one word, or a few letters.
    """
    trace = Trace(text)
    if place.parts and trace.is_short:
        raise InputError("The memory is too short for --parts, which would delete whatever holds these words.")
    held = _held(trace, place)
    tables = _tables(trace, place, held)
    rows = tables.found()
    books = {Path(path): sum(map(trace.is_of, _book(path).memories)) for path in place.books}
    books = {path: n for path, n in books.items() if n}
    skip = {held.path, *(os.path.realpath(path) for path in (*[one.path for one in rows], *books))}
    left = _left(trace, held.keys, skip, tables, place) if look_through else None
    return Found(trace, held, rows, books, left)


def _left(trace: Trace, keys: Set[str], skip: Set[str], tables: Tables, place: Place) -> list[Left]:
    """What cannot be cleaned; keys in rows that have lost their texts lead nowhere any more."""
    cleaned = {os.path.realpath(file) for file in tables.files}
    also = [Path(place.entries)] if place.entries and is_file(place.entries) else []
    left = left_in(root(), trace, keys, skip, _texts_of, also)
    others = "holds the text in rows not known to be made with it (--parts for these; --entries FILE for its entries)"
    return [
        replace(one, why=others) if os.path.realpath(one.path) in cleaned else one
        for one in left
        if os.path.realpath(one.path) not in cleaned or "the text" in one.why
    ]


def _tables(trace: Trace, place: Place, held: Held) -> Tables:
    ids = {entry.entry_id for entry in _entries(place) for memory in entry.memories if trace.is_of(memory)}
    return Tables(trace, place.parts, held.keys, ids, _results_files(place))


def _results_files(place: Place) -> list[Path]:
    files: list[Path] = []
    for name in place.results or ("data/results",):
        path = Path(name).expanduser() if Path(name).expanduser().exists() else in_project(name)
        if place.results and not path.exists():
            raise InputError(f"results: nothing at {str(name)!r}; expected a .parquet or .csv file, or a folder.")
        if place.results and is_file(path) and not is_results(path):
            raise InputError(f"{path.name}: expected a results file; other files are named, and not changed.")
        files += sorted(path.rglob("*.*")) if path.is_dir() else [path]
    return [file for file in dict.fromkeys(files) if file.suffix in (".parquet", ".csv") and is_file(file)]


def _held(trace: Trace, place: Place) -> Held:
    where = _place(place.store or default_store())
    if not is_file(where) and not place.store:
        return Held(where)
    try:
        with closing(open_file(where, read_only=True)) as db:
            return _search(db, where, trace, place.parts)[0]
    except sqlite3.Error as error:
        raise failure(error, where, "read") from None


def _search(db: sqlite3.Connection, where: str, trace: Trace, parts: bool) -> tuple[Held, dict[str, list[int]]]:
    """What a store holds of a memory, and the rows to delete by table."""
    spellings, whole, partly = set(trace.spellings()), set(), set()
    for digest, text in db.execute("SELECT digest, text FROM texts"):
        if found := trace.whole(text):
            whole.add(digest)
            spellings.update(found)
        elif trace.within(text):
            partly.add(digest)
    salts = [bytes.fromhex(salt) for (salt,) in db.execute(_SALTS)]
    hashes = [_salted(salt, text) for salt in salts for text in spellings]
    sets = set()
    for start in range(0, len(hashes), AT_ONCE):
        some = hashes[start : start + AT_ONCE]
        places = ",".join("?" * len(some))
        sets |= {row[0] for row in db.execute(f"SELECT memory_set FROM memory_hashes WHERE hash IN ({places})", some)}
    keys, calls, sent_to, rowids = set(), Counter(), Counter(), {}
    elsewhere = unseen = 0
    for table in ("calls", "failures"):
        rowids[table] = []
        rows = db.execute(f"SELECT rowid, key, role, model, memory_set, messages, {', '.join(_SAID)} FROM {table}")
        for rowid, key, role, model, memory_set, messages, *said in rows:
            digests = {part[1] for part in json.loads(messages)}
            goes = memory_set in sets or digests & whole or trace.whole(messages)
            if not goes and (digests & partly or any(map(trace.within, [*said, messages]))):
                elsewhere += not parts
                goes = parts
            if goes:
                rowids[table].append(rowid)
                keys.add(key)
                calls[_KINDS.get(role, "partitions")] += 1
                if role != "structurer":
                    sent_to[model] += 1
            unseen += not digests
    return Held(where, frozenset(keys), dict(calls), dict(sent_to), elsewhere, unseen), rowids


_SALTS = "SELECT value FROM meta WHERE key = 'salt' OR key LIKE 'salt:%'"


def _texts_of(path: Path) -> Iterator[str]:
    """Every text of an SQLite file."""
    try:
        with closing(connect(os.path.realpath(path), read_only=True)) as db:
            names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()]
            for name in names:
                quoted = name.replace('"', '""')
                for row in db.execute(f'SELECT * FROM "{quoted}"'):
                    yield from (value for value in row if isinstance(value, str))
    except sqlite3.Error as error:
        raise StoreError(str(error)) from None


# -- forgetting -------------------------------------------------------------------------------------------------------


def forget_memory(found: Found, place: Place, drop_rows: bool = False) -> Found:
    """Clean what `find_memory` found, and what has come since.

    Nothing is changed before the store is free. Then results are cleaned, the store's transaction ends, and books come
    last. Killed in the middle this leaves every file either as it was or cleaned, and the same command goes on from
    there: rows are found by the keys of stored calls, and an id is looked up in a book. The store's file is written
    anew every time, so that nothing deleted is left in it, nor in its log.

    Rows of results that were made with the memory lose every text (`blanking.TEXTS`) and keep their scores, settings
    and counts: rates that were reported stay what they were, and nothing that was said with the memory is left. Their
    entry id, a hash, stays too. The file's manifest says how many and when. With `drop_rows` they go altogether, and
    rates change.

    Returns
    -------
    Found
        What is left afterwards: ``left`` and, in the store, ``held.elsewhere``. Exports that hold answers made with the
        memory, and not its words, are in ``left`` this time only: they are known by keys that the store then lacks.

    Raises
    ------
    StoreError
        If another process holds the store for long (nothing was changed then), or reads an older state of it.
    """
    trace, where, keys, deleted = found.trace, found.held.path, set(found.held.keys), False
    if is_file(where):
        try:
            with closing(open_file(where)) as db:
                db.execute("PRAGMA secure_delete = ON")
                with transaction(db):
                    held, rowids = _search(db, where, trace, place.parts)
                    keys |= held.keys
                    tables = _clean_rows(trace, place, held, drop_rows)
                    for table, rows in rowids.items():
                        db.executemany(f"DELETE FROM {table} WHERE rowid = ?", [(row,) for row in rows])
                    drop_unused(db)
                deleted = True
                emptied = vacuum(db)
        except sqlite3.Error as error:
            what = "written anew after the memory was deleted from it, so that bytes of it may be left in its log"
            raise failure(error, where, what if deleted else "cleaned") from None
        if not emptied:
            raise StoreError(
                f"The memory is deleted from {where}, but another process reads an older state of it, so that the log "
                "beside it still holds what was deleted; end that process and give the same command again (it finds "
                "nothing more then, and empties the log)."
            )
    else:
        tables = _clean_rows(trace, place, found.held, drop_rows)
    for path in found.books:
        _remove(path, trace)
    return Found(trace, _held(trace, place), [], {}, _left(trace, keys, {where}, tables, place))


def _clean_rows(trace: Trace, place: Place, held: Held, drop: bool) -> Tables:
    tables, today = _tables(trace, place, held), datetime.now(UTC).date().isoformat()
    for file in tables.files:
        tables.clean(file, drop, today)
    return tables


def _remove(path: Path, trace: Trace) -> None:
    """Take the memory out of a book's file. The book is not opened: that could have a model sort what is left.

    Opened domains and leaves are named by words of their memories, so a partition with names that the taxonomy does not
    give goes as a whole, and the book sorts anew when it is next used; else it loses the memory and its remarks.
    """
    book = _book(path)
    kept = tuple(memory for memory in book.memories if not trace.is_of(memory))
    ids = {memory.id for memory in kept}
    partition, given = book.partition, {UNCLASSIFIED, *(domain.name for domain in book.taxonomy.domains)}
    named = partition is not None and not {label for path, _ in partition.walk() for label in path} <= given
    book = replace(
        book, memories=kept, partition=None if named or partition is None else _without(partition, ids),
        together=0 if named else min(book.together, len(kept)), anew=book.anew or named, version=book.version + 1,
    )  # fmt: skip
    bookfiles.write(path, bookfiles.dumped(book))


def _without(node: Node, ids: Set[str]) -> Node:
    children = (_without(child, ids) for child in node.children)
    memories = tuple(memory for memory in node.memories if memory.id in ids)
    return Node(node.label, memories, tuple(child for child in children if child.all_memories()))
