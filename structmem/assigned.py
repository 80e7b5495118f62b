"""Who put which memory into which domain: one row per memory and rater, from layouts or from partition files."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from .data import Entry
from .errors import InputError
from .outcomes import NONE
from .records import BadRecord, not_json, read_text, records_of
from .taxonomy import Taxonomy, load_taxonomy
from .tree import UNCLASSIFIED, Node

NEW = "(new domains)"  # pools the domains that a structurer opened beyond the taxonomy
NO_RATING = (UNCLASSIFIED, NONE)  # no domain was given; '(none)' stands for a missing value in a table of the user's
KEY = ["entry_id", "position"]
COLUMNS = [*KEY, "rater", "domain"]
_SHOWN = 5


def assignments(nodes: Mapping[str, Sequence[Node]], entries: Sequence[Entry]) -> pd.DataFrame:
    """The top-level domain that each rater gave each memory.

    Parameters
    ----------
    nodes : mapping of str to sequence of Node
        A rater's name (a structure, a structurer, a draw or a model) to one layout per entry, in the order of
        `entries`. The layout must hold every memory, in domains: not the flat list.
    entries : sequence of Entry

    Returns
    -------
    DataFrame
        One row per memory and rater, by entry, position and rater in the orders given: ``entry_id``; ``position`` from
        1 in the entry's list (so memories of the same text stay apart); ``rater``; ``domain``, the label at the top
        level, 'unclassified' for memories that nobody could sort.

    Raises
    ------
    InputError
        Another number of layouts than of entries, an entry twice, a layout of other memories, a layout without domains.
    """
    check_entries(entries)
    rows = []
    for rater, layouts in nodes.items():
        if len(layouts) != len(entries):
            raise InputError(
                f"rater {rater!r} has {len(layouts)} layouts for {len(entries)} entries; expected one each."
            )
        for entry, node in zip(entries, layouts, strict=True):
            rows += [(entry.entry_id, position, rater, domain) for position, domain in _domains(rater, entry, node)]
    raters = {rater: place for place, rater in enumerate(nodes)}
    order = {entry.entry_id: place for place, entry in enumerate(entries)}
    rows.sort(key=lambda row: (order[row[0]], row[1], raters[row[2]]))
    return pd.DataFrame(rows, columns=COLUMNS)


def _domains(rater: str, entry: Entry, node: Node) -> list[tuple[int, str]]:
    held = {memory.id: path for path, part in node.walk() for memory in part.memories}
    if set(held) != {memory.id for memory in entry.memories} or len(node.all_memories()) != len(entry.memories):
        raise InputError(
            f"rater {rater!r} laid out other memories than entry {entry.entry_id!r} has ({len(node.all_memories())}, "
            f"the entry {len(entry.memories)}); expected each once. Structures that drop memories cannot be compared."
        )
    if bare := [memory.id for memory in entry.memories if not held[memory.id]]:
        raise InputError(
            f"rater {rater!r} left memory {bare[0]} of entry {entry.entry_id!r} without a domain; expected a structure "
            "that sorts into domains, such as fixed, dynamic or tree."
        )
    return [(position, held[memory.id][0]) for position, memory in enumerate(entry.memories, start=1)]


def check_entries(entries: Sequence[Entry]) -> None:
    """Refuse entries of which two have the same id."""
    counts = Counter(entry.entry_id for entry in entries)
    if doubled := [name for name, count in counts.items() if count > 1]:
        raise InputError(f"entry {doubled[0]!r} is there {counts[doubled[0]]} times; expected each entry once.")


def check_assignments(table: pd.DataFrame) -> pd.DataFrame:
    """Assignments with plain columns; a missing domain reads '(none)', so that no memory vanishes.

    Raises
    ------
    InputError
        No table of assignments, positions that are no whole numbers, or a memory twice for one rater.
    """
    if not isinstance(table, pd.DataFrame) or not set(COLUMNS) <= set(table):
        found = list(table)[:10] if isinstance(table, pd.DataFrame) else type(table).__name__
        raise InputError(f"expected a table with the columns {COLUMNS}, as assignments makes it, got {found}.")
    table = table[COLUMNS].reset_index(drop=True)
    position = pd.to_numeric(table["position"], errors="coerce")
    if (position.isna() | (position < 1) | (position % 1 != 0)).any():
        raise InputError("position must be whole numbers from 1, the places of the memories in their entry.")
    for column in ("entry_id", "rater"):
        if table[column].isna().any():
            raise InputError(f"{column} is missing in {int(table[column].isna().sum())} rows; expected a name.")
    domain = table["domain"].astype(object)
    table = table.assign(
        position=position.astype(int),
        entry_id=table["entry_id"].astype(str),
        rater=table["rater"].astype(str),
        domain=domain.where(domain.notna() & domain.ne(""), NONE).astype(str),
    )
    if (doubled := table.duplicated([*KEY, "rater"])).any():
        first = table[doubled].iloc[0]
        raise InputError(
            f"{int(doubled.sum())} rows repeat a memory and rater, for example position {first['position']} of entry "
            f"{first['entry_id']!r} by {first['rater']!r}; expected one domain for each."
        )
    return table


def known_labels(labels: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Some columns of a table of labels, one row per memory.

    Raises
    ------
    InputError
        No table of labels, or two labels for a memory.
    """
    if not isinstance(labels, pd.DataFrame) or (lacking := [name for name in (*KEY, *columns) if name not in labels]):
        found = lacking if isinstance(labels, pd.DataFrame) else type(labels).__name__
        raise InputError(f"labels must be a table as load_labels makes it; wrong or lacking: {found}.")
    if (doubled := labels.duplicated(KEY)).any():
        first = labels[doubled].iloc[0]
        raise InputError(
            f"{int(doubled.sum())} memories have two labels, for example position {first['position']} of entry "
            f"{first['entry_id']!r}; expected one for each."
        )
    return labels[[*KEY, *columns]]


def domain_order(domains: pd.Series, taxonomy: str | Taxonomy) -> list[str]:
    """Every domain of a taxonomy, then what else occurs, as tables show it: new domains, unclassified, '(none)'."""
    names = load_taxonomy(taxonomy).names
    others = sorted(set(domains.dropna()) - {*names, *NO_RATING})
    return [*names, *others, *(name for name in NO_RATING if (domains == name).any())]


@dataclass(frozen=True)
class Partitions:
    """What a file of partitions says.

    Attributes
    ----------
    assignments : DataFrame
        As `assignments` makes it; every memory of every entry that has a partition, once.
    report : DataFrame
        One row per entry (and per partition that fits none): ``n_memories``, ``n_placed`` in a domain,
        ``n_unclassified`` (in no domain of the partition), ``n_foreign`` (texts that the entry does not hold),
        ``n_repeated`` (placed more often than the entry holds them; the first place counts), and ``note``, which names
        them by their places; no text.
    """

    assignments: pd.DataFrame
    report: pd.DataFrame


def read_partitions(
    path: str | Path, entries: Sequence[Entry], rater: str | None = None, taxonomy: str | Taxonomy = "life11"
) -> Partitions:
    """Read partitions ``{"domain": [memory text, …]}``, one per entry, as the paper's authors keep them.

    Parameters
    ----------
    path : str or Path
        A JSON list of partitions, a JSON object from entry id to partition, or JSON lines with a partition each (with
        ``{"entry_id": …, "partition": {…}}`` it goes to that entry). Without ids a partition goes to the entry with the
        same texts, as often each; else to the one with which it shares most of them, and more than half.
    entries : sequence of Entry
    rater : str, optional
        Its name in tables; default: the file's name.
    taxonomy : str or Taxonomy
        Names that differ from its domains (or from 'unclassified') only by case are taken for them.

    Returns
    -------
    Partitions
        Memories are found by their text, letter by letter. Where an entry holds a text twice, the first place in the
        file goes to the first of them. Memories in no domain of the partition are 'unclassified'.

    Raises
    ------
    InputError
        A file that cannot be read, or records of another shape (line, found, expected); no partition that fits.
    """
    check_entries(entries)
    path = Path(path)
    found = _fitted(_partitions(path), entries)
    rater = path.stem if rater is None else rater
    spelling = {name.casefold(): name for name in (*load_taxonomy(taxonomy).names, UNCLASSIFIED)}
    rows, report = [], []
    for entry in entries:
        if entry.entry_id not in found:
            report.append((entry.entry_id, len(entry.memories), 0, 0, 0, 0, "no partition in the file"))
            continue
        domains, line = _placed(entry, found[entry.entry_id])
        domains = [spelling.get(domain.casefold(), domain) for domain in domains]
        rows += [(entry.entry_id, position, rater, domain) for position, domain in enumerate(domains, start=1)]
        report.append(line)
    for name, partition in found.items():
        if not any(entry.entry_id == name for entry in entries):
            n = sum(map(len, partition.values()))
            report.append((name, 0, 0, 0, n, 0, f"fits no entry: {n} texts in {len(partition)} domains"))
    if not rows:
        raise InputError(f"{path.name}: none of its {len(found)} partitions fits one of the {len(entries)} entries.")
    columns = ["entry_id", "n_memories", "n_placed", "n_unclassified", "n_foreign", "n_repeated", "note"]
    return Partitions(pd.DataFrame(rows, columns=COLUMNS), pd.DataFrame(report, columns=columns))


def _partitions(path: Path) -> list[tuple[str, str | None, dict[str, list[str]]]]:
    """(where, entry id or None, partition) of each partition of a file."""
    records, problems = list(records_of(read_text(path))), []
    whole = records[0][1] if len(records) == 1 else None
    by_id = isinstance(whole, dict) and whole and all(isinstance(value, dict) for value in whole.values())
    if by_id:
        records = [(records[0][0], {"entry_id": name, "partition": value}) for name, value in whole.items()]
    found = []
    for item, (line, record) in enumerate(records, start=1):
        name = None
        if isinstance(record, dict) and isinstance(record.get("entry_id"), str):
            name, record = record["entry_id"], record.get("partition")
        where = f"{path.name} line {line}" + (f" entry {name!r}" if by_id else f" partition {item}")
        if isinstance(record, BadRecord):
            problems.append(f"{where}: {record}.")
        elif not isinstance(record, dict):
            problems.append(f"{where}: {type(record).__name__}; expected an object from domains to lists of texts.")
        elif strange := [f"{place} is {what}" for key, value in record.items() for place, what in not_json(value, key)]:
            problems.append(f"{where}: {strange[0]}; expected each domain once, with a list of texts.")
        elif wrong := [
            key
            for key, value in record.items()
            if not isinstance(value, list) or any(not isinstance(t, str) for t in value)
        ]:
            problems.append(f"{where}: domain {wrong[0]!r:.60} holds no list of texts; expected a list of strings.")
        else:
            found.append((where, name, record))
    if not found and not problems:
        problems = [f"{path.name} holds no partitions; expected objects from domains to lists of texts."]
    names = Counter(name for _, name, _ in found if name is not None)
    problems += [f"{path.name}: entry {name!r} has {n} partitions; expected one." for name, n in names.items() if n > 1]
    if problems:
        more = [f"… and {len(problems) - _SHOWN} more."] if len(problems) > _SHOWN else []
        raise InputError("\n".join([*problems[:_SHOWN], *more]))
    return found


def _fitted(
    partitions: list[tuple[str, str | None, dict]], entries: Sequence[Entry]
) -> dict[str, dict[str, list[str]]]:
    """Partitions by entry id; those that fit no entry by where they stand."""
    texts = {entry.entry_id: Counter(memory.text for memory in entry.memories) for entry in entries}
    found = {name: partition for _, name, partition in partitions if name is not None}
    rest = [(where, partition) for where, name, partition in partitions if name is None]
    same: dict[frozenset, list[str]] = defaultdict(list)
    for name, held in texts.items():
        if name not in found:
            same[frozenset(held.items())].append(name)
    later = []
    for where, partition in rest:
        waiting = same[frozenset(_texts(partition).items())]
        if waiting:
            found[waiting.pop(0)] = partition
        else:
            later.append((where, partition))
    for where, partition in later:
        mine = _texts(partition)
        shared = {name: (mine & held).total() for name, held in texts.items() if name not in found}
        best = max(shared, key=shared.__getitem__, default=None)  # of equals the first
        fits = best is not None and 2 * shared[best] > max(texts[best].total(), mine.total())
        found[best if fits else where] = partition
    return found


def _texts(partition: dict[str, list[str]]) -> Counter:
    return Counter(text for texts in partition.values() for text in texts)


def _placed(entry: Entry, partition: dict[str, list[str]]) -> tuple[list[str], tuple]:
    """The domain of each memory, and the entry's row of the report."""
    free: dict[str, list[int]] = defaultdict(list)
    for place, memory in enumerate(entry.memories):
        free[memory.text].append(place)
    known = set(free)
    domains: list[str | None] = [None] * len(entry.memories)
    foreign, repeated = [], []
    for domain, texts in partition.items():
        for item, text in enumerate(texts, start=1):
            where = f"{domain!r:.40} item {item}"
            if text not in known:
                foreign.append(where)
            elif free[text]:
                domains[free[text].pop(0)] = domain.strip() or NONE
            else:
                repeated.append(where)
    missing = [str(place) for place, domain in enumerate(domains, start=1) if domain is None]
    counts = Counter(memory.text for memory in entry.memories)
    twins = [str(place) for place, memory in enumerate(entry.memories, start=1) if counts[memory.text] > 1]
    said = {"in no domain: memories": missing, "not in the entry": foreign, "placed again": repeated}
    said["of the same text, taken in their order: memories"] = twins
    note = "; ".join(f"{what} {_listed(names)}" for what, names in said.items() if names)
    n = len(domains)
    line = (entry.entry_id, n, n - len(missing), len(missing), len(foreign), len(repeated), note)
    return [UNCLASSIFIED if domain is None else domain for domain in domains], line


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
