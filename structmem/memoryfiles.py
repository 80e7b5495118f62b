"""Files of memories: what shape a file has, told by its content, and load_memories()."""

from __future__ import annotations

import csv
import io
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path

from .data import Memory, _kind
from .errors import InputError, choice
from .exports import (
    KINDS,
    Reading,
    Row,
    _names,
    items_inside,
    kind_of_item,
    owner_of_page,
    remark_on_pages,
    rows_of,
    text_rows,
)
from .foreign import kind_of_record
from .memorytext import Item, is_model_set_context, model_set_context_items, text_items
from .records import BadRecord, decoded, read_text, records_of

SHAPES = (
    "expected a JSON list of strings, a text or Markdown list, or an export of mem0, LangGraph or LangMem, Zep, Letta, "
    "Claude or ChatGPT"
)
# "[2024] moved to Oslo" is a line; what begins as a list or an object of JSON does is a broken file.
_LIKE_JSON = re.compile(r'[\s\ufeff]*(?:\[\s*(?:["{]|\[\s*["\[{\]]|$)|\{\s*["}])')
_TEXTS = {"memory", "text", "content", "fact"}  # columns of a table that would hold memories
_COLUMN = re.compile(r"[\w.-]{0,40}")
_STORE = ("memories", "memory")  # parts of a namespace that LangGraph and LangMem name a store by, not a user
_SHOWN = 20  # users named in one error


@dataclass(frozen=True, slots=True)
class LeftOut:
    """An item of a file that is no memory.

    Parameters
    ----------
    source : str
        Where it is, as for a memory.
    reason : str
        Why; what stands before a colon is the same for all of one sort.
    text : str
        What was found.
    """

    source: str
    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class MemoryFile:
    """What a file of memories holds: every item is either a memory or left out.

    Parameters
    ----------
    name : str
        The file's name.
    kind : str
        Its shape, in words.
    memories : tuple of Memory
        In the order of the file; ids "1", "2", ….
    left_out : tuple of LeftOut
        In the order of the file.
    remarks : tuple of str
        What else the reader should know.
    """

    name: str
    kind: str
    memories: tuple[Memory, ...]
    left_out: tuple[LeftOut, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def said(self) -> str:
        """One sentence about what was left out and remarked; empty if there is nothing to say."""
        counts = Counter(row.reason.partition(":")[0] for row in self.left_out)
        parts = [f"{len(self.left_out)} left out: {', '.join(f'{why} ({n})' for why, n in counts.items())}"]
        parts = (parts if counts else []) + list(self.remarks)
        kept = "1 memory" if len(self.memories) == 1 else f"{len(self.memories)} memories"
        return f"{self.name} ({self.kind}): {kept}; {'; '.join(parts)}." if parts else ""


def load_memories(path: str | Path, *, user: str | None = None, on: date | str | None = None) -> list[Memory]:
    """Read memories from a text, a list, or the export of a memory store.

    Parameters
    ----------
    path : str or Path
        The file; "-" reads standard input. Its shape is told by its content, never by its name:

        - plain text or Markdown: one line or list item is one memory; headings are none;
        - JSON: a list of strings, JSON lines of them, or of objects with `text` (`source`; `date`, `updated_at` or
          `created_at`; `user_id` or `user`; other fields are not read, which is said);
        - mem0: list, search, pages, or a bare list; `memory`, or the older `data`;
        - LangGraph store items, LangMem's among them: `value` with a text in `content` (also nested), `data`, `text`
          or `memory`;
        - Zep or Graphiti: facts that hold on the day `on`;
        - Letta agent file: the lines of its blocks, but for the block `persona`, which is the agent's own;
        - best effort: Claude's memories (prose split into statements), ChatGPT's `# Model Set Context`.
    user : str, optional
        Whose memories to take, where the file holds those of several: mem0's `user_id`, a LangGraph namespace such as
        ``memories/ada`` (or a part of it, where one namespace has it or all that have it are the same up to it), Zep's
        user or group, Letta's agent, Claude's account, or the `user` of a page. Without it such a file is refused.
    on : date or str, optional
        The day (UTC) at whose end a fact must hold, such as ``2026-03-31``; default today. Left out are Zep facts with
        `valid_at` after it, or `invalid_at` or `expired_at` up to it, and mem0 items with `expiration_date` before it.

    Returns
    -------
    list of Memory
        In the order of the file (ChatGPT's by its numbers), ids "1", "2", …. `source` says where each is from:
        ``mem0:ID``, ``langgraph:NAMESPACE/KEY``, ``zep:UUID``, ``letta:BLOCK/LABEL line 3``, ``claude:…``,
        ``chatgpt:NUMBER``, or the place in the file with its headings. `date` is the day on which the text was last
        written (`updated_at`, else `created_at`; Zep has the latter only). Texts may repeat.
        `memoryfiles.read_memory_file` gives also what was left out.

    Raises
    ------
    InputError
        The file cannot be read, has none of these shapes (a table has not), mixes them, or holds the memories of
        several users.

    Warns
    -----
    UserWarning
        One sentence: what was left out and why, pages that are missing, parts that are not read.
    """
    found = read_memory_file(path, user=user, on=on)
    if found.said:
        warnings.warn(found.said, stacklevel=2)
    return list(found.memories)


def read_memory_file(path: str | Path, *, user: str | None = None, on: date | str | None = None) -> MemoryFile:
    """As `load_memories`, with what was left out and no warning."""
    name, text = _text_of(path)
    reading = Reading(name, _day(on))
    kind, rows = _rows(text, reading)
    rows = _of_user(list(rows), user, reading, kind)
    if not rows:
        reading.remark("the file holds no memories")
    if reading.unread:
        reading.remark(f"other fields are not read: {_names(reading.unread)}")
    if reading.unread_dates:
        some = "1 date cannot be read and counts" if reading.unread_dates == 1 else None
        reading.remark(f"{some or f'{reading.unread_dates} dates cannot be read and count'} as none")
    kept = (row for row in rows if row.reason is None)
    memories = tuple(Memory(str(number), row.text, row.source, row.date) for number, row in enumerate(kept, start=1))
    left_out = tuple(LeftOut(row.source, row.reason, row.text) for row in rows if row.reason is not None)
    return MemoryFile(name, kind, memories, left_out, tuple(reading.remarks))


def _text_of(path: str | Path) -> tuple[str, str]:
    if str(path) == "-":
        if getattr(sys.stdin, "buffer", None) is None:  # closed, or that of a notebook
            raise InputError("there is no standard input to read; name a file.")
        name, text = "standard input", decoded(sys.stdin.buffer.read(), "standard input")
    else:
        name, text = Path(path).name, read_text(path)
    if "\0" in text:
        raise InputError(f"{name} holds null characters, so it is no text; {SHAPES}.")
    return name, text


def _day(on: date | str | None) -> date:
    if on is None:
        return datetime.now(UTC).date()
    try:
        found = date.fromisoformat(on) if isinstance(on, str) else on
        return found.date() if isinstance(found, datetime) else date.fromordinal(found.toordinal())
    except (AttributeError, ValueError):
        raise InputError(f"on must be a day such as 2026-03-31, got {on!r}.") from None


def _rows(text: str, reading: Reading) -> tuple[str, Iterator[Row]]:
    records = _json_records(text, reading.name)
    if records is not None:
        return _rows_of_json(records, reading)
    start = text.lstrip("\ufeff \t\r\n")[:20].lower()
    if start.startswith(("<!doctype", "<html", "<?xml")):
        raise InputError(f"{reading.name} is an HTML or XML page; nothing was read; {SHAPES}.")
    if start.startswith("{\\rtf"):
        raise InputError(f"{reading.name} is a rich text document; save it as plain text; nothing was read.")
    if start.strip() in ("null", "true", "false"):
        raise InputError(f"{reading.name} holds {start.strip()} and nothing else; {SHAPES}.")
    if columns := _columns_of_table(text):
        raise InputError(
            f"{reading.name} looks like a table (columns {', '.join(columns)}); nothing was read. Save it as JSON "
            "lines whose objects have the fields text and, where they are of several users, user_id."
        )
    if is_model_set_context(text):
        reading.remark("ChatGPT's shape is known from reports only (best effort)")
        items = model_set_context_items(text)
        return "ChatGPT's context", text_rows(items, lambda item: _chatgpt(item, reading.name), reading)
    return "a text", text_rows(text_items(text), lambda item: _place(item, reading.name), reading)


def _columns_of_table(text: str) -> list[str]:
    """The columns of a table in text form, one of them a memory's; empty for what is no table."""
    text = text.lstrip("\ufeff \r\n")
    head = text.partition("\n")[0].rstrip("\r")
    if ", " in head and "_" not in head:  # prose has a space after its commas, and no user_id
        return []
    for mark in ",\t;":
        columns = [name.strip().strip('"') for name in head.split(mark)]
        if len(columns) > 1 and all(map(_COLUMN.fullmatch, columns)) and _TEXTS & {name.lower() for name in columns}:
            try:
                counts = [len(row) for row in csv.reader(io.StringIO(text, newline=""), delimiter=mark) if row]
            except csv.Error:
                return []
            if len(counts) > 1 and counts[1:].count(len(columns)) > len(counts[1:]) / 2:  # some forget their quotes
                return columns
    return []


def _place(item: Item, name: str) -> str:
    under = f" under {' > '.join(item.under)}" if item.under else ""
    return f"{name} line {item.line}{f' {item.box}' if item.box else ''}{under}"


def _chatgpt(item: Item, name: str) -> str:
    return f"{name} line {item.line}" if item.number is None else f"chatgpt:{item.number}"


def _json_records(text: str, name: str, depth: int = 0) -> list[object] | None:
    """The records of a JSON text, of JSON lines, or of JSON inside a JSON string; None for a text that is no JSON."""
    start = text.lstrip("\ufeff \t\r\n")[:1]
    if start not in ("[", "{", '"'):
        return None
    found = list(records_of(text))
    records = [record for _, record in found]
    if bad := next(((line, record) for line, record in found if isinstance(record, BadRecord)), None):
        if start == '"' or not _LIKE_JSON.match(text):
            return None
        raise InputError(f"{name} line {bad[0]} looks like JSON but cannot be read: {bad[1]}.")
    if start == '"':
        if not all(isinstance(record, str) for record in records):
            return None
        if len(records) == 1 and depth < 3 and records[0].lstrip().startswith(("[", "{")):
            inner = _json_records(records[0], name, depth + 1)  # so is a public agent file of Letta
            return records if inner is None else inner
    return records


def _rows_of_json(records: list[object], reading: Reading) -> tuple[str, Iterator[Row]]:
    items: list[object] = []
    owners: list[str] = []
    for record in records:
        inside = items_inside(record, reading)
        items += [record] if inside is None else inside
        owners += [""] if inside is None else [owner_of_page(record)] * len(inside)
    remark_on_pages(len(items), reading)
    kinds = Counter(filter(None, map(kind_of_item, items)))
    if len(kinds) > 1:
        names = ", ".join(KINDS[kind][0] for kind in kinds)
        raise InputError(f"{reading.name} mixes items of {names}; give each a file of its own.")
    if not kinds and items:
        raise _unknown(items, reading.name)
    kind = next(iter(kinds), "list")
    return KINDS[kind][0], rows_of(kind, zip(items, owners, strict=True), reading)


def _unknown(items: list[object], name: str) -> InputError:
    first = next((item for item in items if isinstance(item, dict)), items[0])
    if isinstance(first, dict) and {"query", "memories"} <= set(first):
        return InputError(f"{name} holds entries (memories with a query); read them with load_entries.")
    if foreign := kind_of_record(first):
        return InputError(f"{name} seems to be {foreign}; nothing was read; {SHAPES}.")
    found = f"objects with the fields {_names(first)}" if isinstance(first, dict) else _kind(first)
    return InputError(f"{name} holds {found}, of no shape that is known; {SHAPES}.")


def _of_user(rows: list[Row], user: str | None, reading: Reading, kind: str) -> list[Row]:
    """Rows of one user; memories of others become rows that are left out."""
    kept = [row.owners for row in rows if row.reason is None]
    menu = list(dict.fromkeys(owner for owners in kept for owner in owners))
    if user is None:
        if kept and not set(kept[0]).intersection(*kept):
            raise _several(menu, user, reading.name)
        return rows
    if not rows:
        return rows
    if not set(menu) - {""}:
        raise InputError(f"{reading.name} ({kind}) names no users; leave user out, got {user!r}.")
    mine = {user} & set(menu)
    if not mine and kind == KINDS["langgraph"][0]:
        up_to = {owner: beginning for owner in menu if (beginning := _up_to(user, owner))}
        if len(up_to) == 1 or len(set(up_to.values())) == 1 and user not in _STORE:
            mine = set(up_to)
        if len(mine) > 1:
            reading.remark(f"{len(mine)} namespaces were read: {', '.join(list(up_to)[:_SHOWN])}")
    if not mine:
        raise _several(menu, user, reading.name)
    return [row if row.reason or mine & set(row.owners) else replace(row, reason="of another user") for row in rows]


def _up_to(user: str, namespace: str) -> str:
    """The beginning of a namespace up to the part, or the parts, that a user is named by; empty where it has none."""
    if f"{namespace}/".startswith(f"{user}/"):
        return user
    parts = namespace.split("/")
    return "/".join(parts[: parts.index(user) + 1]) if user in parts else ""


def _several(menu: list[str], user: str | None, name: str) -> InputError:
    shown = choice("user", user, menu[:_SHOWN])
    more = f" (and {len(menu) - _SHOWN} more)" if len(menu) > _SHOWN else ""
    nobody = " '' stands for items that name nobody." if "" in menu[:_SHOWN] else ""
    return InputError(f"{name} holds the memories of {len(menu)} users, which are never mixed{more}: {shown}{nobody}")
