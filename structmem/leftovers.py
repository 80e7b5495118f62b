"""Files of the project that hold a forgotten memory and are not for structmem to change: notebooks, exports, sheets."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from .errors import StructmemError
from .paths import is_dir, is_file
from .traces import Trace, keys_in, notebook_text, without_tags

LARGEST = 200_000_000  # bytes of a file, or of one file inside an archive, that are looked into
# Folders of code and of other tools, in which nothing of a user's memories is written by structmem. Other hidden ones
# are looked into: copies of notebooks lie in .ipynb_checkpoints, a report that was cut short in .report.….
_PASSED_OVER = {
    "node_modules", "__pycache__", "site-packages", ".git", ".hg", ".svn", ".tox", ".nox", ".venv", ".mypy_cache",
    ".ruff_cache", ".pytest_cache", ".hypothesis",
}  # fmt: skip
_PACKED = {b"\x1f\x8b": gzip, b"BZ": bz2, b"\xfd7": lzma}
_FOREIGN = {b"\x28\xb5\x2f\xfd": "zstd", b"7z\xbc\xaf": "7z", b"Rar!": "rar"}
_PAGES = (".html", ".htm", ".ipynb", ".svg")
# Where there is no project, the working directory may be anybody's home: only what structmem writes is looked at.
_WRITTEN = (
    "data",
    "runs",
    "notebooks",
    "figures",
    "tables",
    "audit",
    "report",
    "reports",
    "examples",
    "ipynb_checkpoints",
)


# RuntimeError: an archive with a password, or packed in a way that is not known here.
_BROKEN = (zlib.error, lzma.LZMAError, zipfile.BadZipFile)
_UNREADABLE = (OSError, ValueError, EOFError, RuntimeError, StructmemError, *_BROKEN)


@dataclass(frozen=True)
class Left:
    """A file that cannot be cleaned here, and what it holds."""

    path: Path
    why: str


def left_in(
    folder: Path, trace: Trace, keys: Set[str], skip: Set[str], texts_of: Callable, also: Sequence[Path] = ()
) -> Iterator[Left]:
    """Look through a project's files for a memory's words, and for answers that were made with it.

    Parameters
    ----------
    folder : Path
        A project; where it is none (no ``data/recorded``), only the files at its top and the folders that structmem
        writes are looked at.
    trace : Trace
    keys : set of str
        Keys of calls made with the memory: exports and results name them.
    skip : set of str
        Real paths of files that are cleaned otherwise.
    texts_of : callable
        ``texts_of(path)`` gives the texts of an SQLite file.
    also : paths
        Files elsewhere.

    Yields
    ------
    Left
        In the order of paths, each file once; links are followed. Environments and folders of version history are not
        looked into; what cannot be read is yielded too.
    """
    seen = set(skip)
    for path in [*also, *_files(folder, everywhere=is_dir(folder / "data" / "recorded"))]:
        if (real := os.path.realpath(path)) in seen:
            continue
        seen.add(real)
        try:
            why = _held(path, trace, keys, texts_of)
        except _UNREADABLE as error:
            reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:80] or type(error).__name__
            why = f"could not be looked into ({reason})"
        if why:
            yield Left(path, why)


def _files(top: Path, everywhere: bool) -> Iterator[Path]:
    seen = set()
    for here, folders, files in os.walk(top, followlinks=True):
        seen.add(os.path.realpath(here))
        folders[:] = sorted(
            name
            for name in folders
            if name not in _PASSED_OVER and not (Path(here, name) / "pyvenv.cfg").exists()
            and (everywhere or Path(here) != top or name.lstrip(".").split(".")[0] in _WRITTEN)
            and os.path.realpath(Path(here, name)) not in seen
        )  # fmt: skip
        yield from (path for name in sorted(files) if (path := Path(here, name)).is_file())


def _held(path: Path, trace: Trace, keys: Set[str], texts_of: Callable) -> str | None:
    database, _, beside = str(path).rpartition("-")
    if beside in ("wal", "shm", "journal") and is_file(database):  # read with it
        return None
    if (size := path.stat().st_size) > LARGEST:
        return f"not looked into: {size / 1e6:,.0f} MB"
    with open(path, "rb") as file:
        head = file.read(16)
    if head == b"SQLite format 3\0":
        found = any(trace.within(text) for text in texts_of(path))
        return "holds the text (a database; if it is a store: structmem forget --store)" if found else None
    if head[:4] == b"PAR1":
        return _said(_cells(path), trace, keys)
    if head[:4] == b"PK\x03\x04":
        return _said(_members(path), trace, keys)
    if head[:4] in _FOREIGN:
        raise ValueError(f"packed by {_FOREIGN[head[:4]]}")
    data = path.read_bytes()
    if packed := _PACKED.get(head[:2]):
        try:
            with packed.open(path) as file:
                data = file.read(LARGEST + 1)
        except (OSError, EOFError, lzma.LZMAError):
            if head[:2] != b"BZ":  # else a text may begin so
                raise
    if len(data) > LARGEST:
        raise ValueError(f"unpacked larger than {LARGEST / 1e6:,.0f} MB")
    text = _decoded(data)
    views = [notebook_text(text) if path.suffix == ".ipynb" else text]
    return _said([*views, *(map(without_tags, views) if path.suffix in _PAGES else ())], trace, keys)


def _decoded(data: bytes) -> str:
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", "replace")
    bare = data[1:64:2].count(0) > 24  # two bytes per letter, without the mark that says so
    return data.decode("utf-16-le" if bare else "utf-8", "replace")


def _cells(path: Path) -> Iterator[str]:
    """Texts of a parquet file: names, notes, and every cell that is not a plain number, also inside lists and records.

    Read by pyarrow: of pandas' columns some cannot be told apart (dictionaries) or compared (lists).
    """
    import pyarrow as pa
    from pyarrow import parquet

    table = parquet.read_table(path)
    yield from (note.decode("utf-8", "replace") for pair in (table.schema.metadata or {}).items() for note in pair)
    for name, column in zip(table.column_names, table.columns, strict=True):
        yield name
        if not pa.types.is_primitive(column.type):
            cells = (value for value in column.to_pylist() if value is not None)
            yield from {
                cell if isinstance(cell, str) else json.dumps(cell, ensure_ascii=False, default=str) for cell in cells
            }


def _members(path: Path) -> Iterator[str]:
    """Texts of the files in an archive, such as an Inspect log."""
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if member.file_size > LARGEST:
                raise ValueError(f"{member.filename:.40} in it is larger than {LARGEST / 1e6:,.0f} MB")
            yield _decoded(archive.read(member))


def _said(texts, trace: Trace, keys: Set[str]) -> str | None:
    """What is held, in words; None for nothing."""
    within, named = False, 0
    for text in texts:
        within = within or trace.within(text)
        named += keys_in(text, keys)
    held = ["the text"] if within else []
    held += [f"calls made with it, or their keys ({named})"] if named else []
    return f"holds {' and '.join(held)}" if held else None
