"""Reference labels: the domain of a memory by reading, by entry id and position; read, checked, found for a memory set.

Labels are CSV files without any text. The package ships two passes and the reference made from them (``data/labels``);
users add files of the same shape.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import io
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .data import Entry
from .errors import InputError, choice
from .paths import is_file, shared
from .records import read_text
from .taxonomy import Taxonomy, load_taxonomy

if TYPE_CHECKING:
    import pandas as pd

NO_DOMAIN = "none"  # a label: no domain of the taxonomy covers the memory
SHIPPED = ("reference", "pass_1", "pass_2")
COLUMNS = ("entry_id", "position", "domain", "acceptable", "spans_domains")
MOST_ACCEPTABLE = 3
_ROWS_SHOWN = 10
_SAMPLE = ("entry_id", "stratum", "stratum_entries", "stratum_sampled", "weight", "memory_set", "n_memories")


def memory_set(texts: Iterable[str]) -> str:
    """Name of a memory list: the first 16 hexadecimal digits of a sha256 over its texts in their order."""
    whole = json.dumps(list(texts), ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def load_labels(source: str | Path = "reference", taxonomy: str | Taxonomy = "life11") -> pd.DataFrame:
    """Read reference labels.

    Parameters
    ----------
    source : str or Path
        ``"reference"``, ``"pass_1"`` or ``"pass_2"`` (shipped), or a CSV file with the columns ``entry_id, position,
        domain, acceptable, spans_domains`` and, if wanted, ``memory_set``, ``weight``, ``stratum`` (or a file
        ``sample.csv`` beside it that holds them) and ``decided``.
    taxonomy : str or Taxonomy
        Whose domains the labels name.

    Returns
    -------
    DataFrame
        One row per memory: ``entry_id``; ``memory_set`` (see `memory_set`; empty if unknown); ``position`` from 1;
        ``domain``, the primary one, or 'none'; ``acceptable``, a tuple of one to three, the primary one first;
        ``spans_domains`` (bool); ``weight``, entries of the benchmark per entry of the sample (1 if unknown);
        ``stratum``; ``decided`` ('agreed' or 'adjudicated'; empty if unknown).

    Raises
    ------
    InputError
        No such file, missing columns, or bad rows: each is named by file, line, what was found and what was expected.
    """
    import pandas as pd

    rows = _rows(_path(source), load_taxonomy(taxonomy))
    columns = ["entry_id", "memory_set", "position", "domain", "acceptable", "spans_domains", "weight", "stratum"]
    return pd.DataFrame(rows, columns=[*columns, "decided"])


def labels_of(texts: Sequence[str], source: str | Path = "reference") -> list[tuple[str, tuple[str, ...]]]:
    """Labels of a memory list, found by its `memory_set`.

    Parameters
    ----------
    texts : sequence of str
        All memories of an entry, in its order.
    source : str or Path
        As for `load_labels`.

    Returns
    -------
    list of (domain, acceptable)
        One per memory, in order: the primary domain ('none' if no domain covers it), and the acceptable ones.

    Raises
    ------
    InputError
        If the list is not labelled, or not every memory of it.
    """
    texts, path = list(texts), _path(source)
    found = _sets(path).get(memory_set(texts), {})
    if sorted(found) != list(range(1, len(texts) + 1)):
        raise InputError(
            f"{path.name} labels {len(found)} of the {len(texts)} memories of this list; reference labels are needed "
            "for all of them. Take labelled entries only (load_labels()['entry_id']), or pass a file of your own "
            "labels with the column memory_set."
        )
    return [found[position] for position in range(1, len(texts) + 1)]


def labelled(entries: Iterable[Entry], source: str | Path = "reference") -> list[Entry]:
    """The entries whose memories are all labelled, in the order given.

    An entry is found by its `memory_set`; in a file without that column by its id.

    Raises
    ------
    InputError
        A file that cannot be read, or entries of which none is labelled.
    """
    entries, path = list(entries), _path(source)
    sets, by_id = _sets(path), {}
    for row in _rows(path, None):
        if not row["memory_set"]:
            by_id.setdefault(row["entry_id"], set()).add(row["position"])

    def positions(entry: Entry) -> list[int]:
        return sorted(sets.get(memory_set(m.text for m in entry.memories)) or by_id.get(entry.entry_id, ()))

    found = [entry for entry in entries if positions(entry) == list(range(1, len(entry.memories) + 1))]
    if entries and not found:
        raise InputError(
            f"{path.name} labels all memories of none of the {len(entries)} entries; expected labels of these entries "
            "(label_sheet makes an empty file for them)."
        )
    return found


def label_sheet(entries: Iterable[Entry]) -> pd.DataFrame:
    """An empty label file for entries of your own: one row per memory, to be filled in and read by `load_labels`.

    Returns
    -------
    DataFrame
        ``entry_id``, ``memory_set``, ``position``, and the empty columns ``domain``, ``acceptable``, ``spans_domains``.
        No text: keep the entries beside it.
    """
    import pandas as pd

    rows = []
    for entry in entries:
        digest = memory_set(memory.text for memory in entry.memories)
        rows += [(entry.entry_id, digest, position, "", "", "") for position in range(1, len(entry.memories) + 1)]
    return pd.DataFrame(rows, columns=["entry_id", "memory_set", *COLUMNS[1:]])


def labels_folder() -> Path:
    """The folder of the shipped labels."""
    return shared("data/labels")


def _path(source: str | Path) -> Path:
    if isinstance(source, str) and source in SHIPPED:
        return labels_folder() / f"{source}.csv"
    if not (isinstance(source, str | Path) and is_file(source)):
        raise InputError(f"labels must be one of {list(SHIPPED)} or the path of a CSV file, got {str(source)!r:.200}.")
    return Path(source)


def _sets(path: Path) -> dict[str, dict[int, tuple[str, tuple[str, ...]]]]:
    """memory_set → position → label."""
    read = [one for one in (path, path.parent / "sample.csv") if is_file(one)]
    return _sets_as_of(path, tuple(one.stat().st_mtime_ns for one in read))


@functools.lru_cache(maxsize=8)
def _sets_as_of(path: Path, changed: tuple[int, ...]) -> dict[str, dict[int, tuple[str, tuple[str, ...]]]]:
    """What `_sets` gives; `changed`, when the files last were, keeps the cache honest."""
    found: dict[str, dict[int, tuple[str, tuple[str, ...]]]] = {}
    owner: dict[str, str] = {}
    for row in _rows(path, None):
        # Two entries may hold the same memories; the labels of the first are taken.
        if row["memory_set"] and owner.setdefault(row["memory_set"], row["entry_id"]) == row["entry_id"]:
            found.setdefault(row["memory_set"], {})[row["position"]] = row["domain"], row["acceptable"]
    return found


def _lines(path: Path, needed: Sequence[str]) -> Iterator[tuple[int, dict]]:
    """Line number and cells of each row of a CSV file whose first line names at least the needed columns."""
    reader = csv.DictReader(io.StringIO(read_text(path).lstrip("\ufeff"), newline=""))
    try:
        header = reader.fieldnames or []
        if missing := [column for column in needed if column not in header]:
            raise InputError(f"{path.name} line 1 lacks the columns {missing}, found {list(header)[:10]}.")
        if doubled := sorted({column for column in header if header.count(column) > 1}):
            raise InputError(f"{path.name} line 1 has the columns {doubled} twice; expected each once.")
        for cells in reader:
            yield reader.line_num, cells
    except csv.Error as error:
        raise InputError(f"{path.name} line {reader.line_num}: {error}; expected a CSV file.") from None


def _rows(path: Path, taxonomy: Taxonomy | None) -> list[dict]:
    """Every row of a label file, checked; without a taxonomy the names of domains are taken as they are."""
    beside = path.parent / "sample.csv"
    sample = _sample(beside) if is_file(beside) and beside != path else {}
    menu = None if taxonomy is None else (*taxonomy.names, NO_DOMAIN)
    rows, problems, seen = [], [], {}
    for line, cells in _lines(path, COLUMNS):
        row, found = _row(cells, menu)
        place = (row.get("entry_id"), row.get("position"))
        if not found and place in seen:
            found = [f"entry {place[0]!r} position {place[1]} is on line {seen[place]} too; expected it once"]
        seen.setdefault(place, line)
        problems += [f"{path.name} line {line}: {problem}." for problem in found]
        drawn = sample.get(row.get("entry_id"), {})
        if not found and row["position"] > drawn.get("n_memories", math.inf):
            problems.append(
                f"{path.name} line {line}: position {row['position']}; the entry has {drawn['n_memories']} memories."
            )
        rows.append({"memory_set": "", "weight": 1.0, "stratum": "", "decided": ""} | drawn | row)
    if not rows:
        problems.append(f"{path.name} holds no labels; expected one row per memory.")
    if problems:
        more = [f"… and {len(problems) - _ROWS_SHOWN} more."] if len(problems) > _ROWS_SHOWN else []
        raise InputError("\n".join([*problems[:_ROWS_SHOWN], *more]))
    return rows


def _row(cells: dict, menu: Sequence[str] | None) -> tuple[dict, list[str]]:
    """One row and what is wrong with it."""
    if None in cells or None in cells.values():
        return {}, ["another number of cells than the first line"]
    cells = {name: value.strip() for name, value in cells.items()}
    problems = []
    row: dict = {name: cells[name] for name in ("entry_id", "memory_set", "stratum", "decided") if cells.get(name)}
    if not cells["entry_id"]:
        problems.append("entry_id is empty; expected the entry's id")
    position = cells["position"]
    if position.isascii() and position.isdigit() and int(position):
        row["position"] = int(position)
    else:
        problems.append(f"position is {position!r:.40}; expected a whole number from 1")
    row["domain"], row["acceptable"] = cells["domain"], tuple(part.strip() for part in cells["acceptable"].split(";"))
    wrong = [name for name in (row["domain"], *row["acceptable"]) if not name or menu is not None and name not in menu]
    if wrong:
        expected = f"one of {list(menu)}" if menu is not None else "names of domains"
        problems.append(f"domain {wrong[0]!r:.60}; expected {expected}")
    elif row["acceptable"][0] != row["domain"]:
        problems.append(f"acceptable starts with {row['acceptable'][0]!r}; expected the domain {row['domain']!r} first")
    elif len(set(row["acceptable"])) < len(row["acceptable"]) or len(row["acceptable"]) > MOST_ACCEPTABLE:
        problems.append(f"acceptable is {cells['acceptable']!r}; expected one to {MOST_ACCEPTABLE} different domains")
    if cells["spans_domains"] in ("0", "1"):
        row["spans_domains"] = cells["spans_domains"] == "1"
    else:
        problems.append(f"spans_domains is {cells['spans_domains']!r:.40}; expected 0 or 1")
    if cells.get("weight"):
        row["weight"] = _weight(cells["weight"])
        if math.isnan(row["weight"]):
            problems.append(f"weight is {cells['weight']!r:.40}; expected a number above 0")
    if cells.get("decided") not in (None, "", "agreed", "adjudicated"):
        problems.append(str(choice("decided", cells["decided"], ("agreed", "adjudicated"))).rstrip("."))
    return row, problems


def _weight(text: str) -> float:
    """A number above 0, or NaN."""
    try:
        weight = float(text)
    except ValueError:
        return math.nan
    return weight if 0 < weight < math.inf else math.nan


def _sample(path: Path) -> dict[str, dict]:
    """What a sample file says of each entry: memory_set, n_memories, stratum, weight."""
    found = {}
    for line, cells in _lines(path, _SAMPLE):
        if None in cells or None in cells.values():
            raise InputError(f"{path.name} line {line}: another number of cells than the first line.")
        weight, n = _weight(cells["weight"]), cells["n_memories"]
        if math.isnan(weight) or not (n.isascii() and n.isdigit()):
            raise InputError(
                f"{path.name} line {line}: weight {cells['weight']!r:.40}, n_memories {n!r:.40}; expected a number "
                "above 0 and a whole number."
            )
        if cells["entry_id"] in found:
            raise InputError(f"{path.name} line {line}: entry {cells['entry_id']!r} is there twice; expected it once.")
        found[cells["entry_id"]] = {
            "memory_set": cells["memory_set"], "n_memories": int(n), "stratum": cells["stratum"], "weight": weight,
        }  # fmt: skip
    return found
