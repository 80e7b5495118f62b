"""Exports of memory stores, known by their fields: each item becomes a row, a memory or what is left out and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime

from .data import _kind, _text_problem
from .memorytext import Item, text_items
from .records import NotJson


@dataclass(frozen=True, slots=True)
class Row:
    """One item of a file.

    Parameters
    ----------
    source : str
        Where it is from: ``mem0:ID``, or the place in the file.
    text : str
        Of a memory, its text; of what is left out, what was found.
    date : str or None
        The day on which the text was last written, ``YYYY-MM-DD``.
    owners : tuple of str
        Whose it is; "" where the file names nobody.
    reason : str or None
        Why it is no memory; None for a memory.
    """

    source: str
    text: str
    date: str | None = None
    owners: tuple[str, ...] = ("",)
    reason: str | None = None


@dataclass(slots=True)
class Reading:
    """What a reader of a file is told and what it has to say beside its rows.

    Parameters
    ----------
    name : str
        The file's name.
    on : date
        The day on which a fact must hold.
    remarks : dict of str to None
        Sentences for the user, each once, in order.
    unread_dates : int
        Dates that could not be read.
    pages : list of dict
        The pages of the file, where it is made of such.
    unread : dict of str to None
        Fields of items that are not read, each once, in order.
    """

    name: str
    on: date
    remarks: dict[str, None] = field(default_factory=dict)
    unread_dates: int = 0
    pages: list[dict] = field(default_factory=list)
    unread: dict[str, None] = field(default_factory=dict)

    def remark(self, sentence: str) -> None:
        """Keep a sentence for the user."""
        self.remarks[sentence] = None

    def day(self, value: object) -> date | None:
        """The day that a field names, in its own time zone; None where it names none."""
        if value is None or value == "":
            return None
        try:
            if isinstance(value, int | float) and not isinstance(value, bool):  # seconds, or milliseconds, since 1970
                return datetime.fromtimestamp(value / 1000 if abs(value) > 1e11 else value, UTC).date()
            return datetime.fromisoformat(value.strip()).date()
        except (AttributeError, TypeError, ValueError, OverflowError, OSError):
            self.unread_dates += 1
            return None

    def utc_day(self, value: object) -> date | None:
        """As `day`, in UTC, in which ends are compared."""
        found = self.day(value)
        if found is not None and isinstance(value, str):
            moment = datetime.fromisoformat(value.strip())
            try:
                return moment.astimezone(UTC).date() if moment.tzinfo else found
            except OverflowError:  # 9999-12-31 in the west of UTC: for ever, in any zone
                return found
        return found

    def written(self, record: dict, *names: str) -> str | None:
        """The day of the first of these fields that is filled."""
        value = next((record[name] for name in names if record.get(name) not in (None, "")), None)
        found = self.day(value)
        return found.isoformat() if found else None

    def row(self, source: str, text: object, date: str | None = None, owners: tuple[str, ...] = ("",)) -> Row:
        """A memory, or a row that says what is there in place of its text."""
        if isinstance(text, NotJson):
            return Row(source, f"({text})", date, owners, f"not a text: {text}")
        if (problem := _text_problem(text)) is None:
            return Row(source, text, date, owners)
        if not isinstance(text, str):
            return Row(source, f"({problem})", date, owners, f"not a text: {problem}")
        return Row(source, text, date, owners, "empty" if problem.startswith("blank") else f"unsound text: {problem}")


def kind_of_item(item: object) -> str | None:
    """The kind of export that an item of a JSON file is from, a key of `KINDS`; None for another."""
    if isinstance(item, str) and not isinstance(item, NotJson):
        return "list"
    if not isinstance(item, dict):
        return None
    fields = set(item)
    if isinstance(item.get("agents"), list) and isinstance(item.get("blocks"), list):
        return "letta"
    if fields & {"conversations_memory", "project_memories"} or {"memory_files", "account_uuid"} <= fields:
        return "claude"
    if {"namespace", "value"} <= fields:
        return "langgraph"
    if "fact" in fields and isinstance(item["fact"], str | None):
        return "zep"
    if "memory" in fields and "query" not in fields and isinstance(item["memory"], str | None):
        return "mem0"
    if "data" in fields and fields & {"id", "user_id", "agent_id", "hash"} and isinstance(item["data"], str | None):
        return "mem0"
    return "list" if "text" in fields and not {"query", "memories"} <= fields else None


def items_inside(record: object, reading: Reading) -> list | None:
    """The items of a page, such as ``{"results": […], "next": …}``; None for what is no page."""
    if not isinstance(record, dict) or set(record) & {"query", "children"} or kind_of_item(record):
        return None
    name = next((name for name in _PAGES if isinstance(record.get(name), list)), None)
    if name is None:
        return None
    reading.pages.append(record)
    for other, value in record.items():
        if other != name and isinstance(value, list | dict) and value:
            reading.remark(f"{other!r} ({len(value)}) is not read")
    return record[name]


def owner_of_page(page: object) -> str:
    """Whom a page names for all its items; empty if nobody."""
    return next(filter(None, (_owner(page.get(name)) for name in _OWNERS)), "")


def remark_on_pages(read: int, reading: Reading) -> None:
    """Say where the last page names a next one, or a page counts more items than the `read` ones of this file."""
    count = max((page["count"] for page in reading.pages if isinstance(page.get("count"), int)), default=0)
    if count > read or reading.pages and reading.pages[-1].get("next") not in (None, "", False):
        reading.remark(f"this is a part{f' of {count} items' if count > read else ''}: more pages exist")


_PAGES = ("results", "memories", "facts", "edges", "items")
_OWNERS = ("user_id", "group_id", "graph_id", "user")


def rows_of(kind: str, items: Iterable[tuple[object, str]], reading: Reading) -> Iterator[Row]:
    """Rows of the items of a file, each with the owner of its page, in order.

    An item of another kind is a row too, with a reason.
    """
    for number, (item, owner) in enumerate(items, start=1):
        for row in _rows_of_item(kind, item, f"{reading.name} item {number}", reading):
            yield replace(row, owners=(owner,)) if owner and row.owners == ("",) else row


def _rows_of_item(kind: str, item: object, place: str, reading: Reading) -> Iterator[Row]:
    if kind_of_item(item) == kind:
        yield from KINDS[kind][1](item, place, reading)
    elif isinstance(item, dict):
        yield Row(place, f"(fields: {_names(item)})", reason="of another shape")
    else:
        yield reading.row(place, item)


def text_rows(items: Iterable[Item], source, reading: Reading, date: str | None = None, owners=("",)) -> Iterator[Row]:
    """Rows of the items of a text; `source` makes an item's source, `date` is that of the whole text."""
    for item in items:
        found = reading.day(item.date)
        row = reading.row(source(item), item.text, found.isoformat() if found else date, owners)
        yield row if item.reason in (None, "empty") else Row(row.source, row.text, row.date, owners, item.reason)


def _list(item: str | dict, place: str, reading: Reading) -> Iterator[Row]:
    if isinstance(item, str):
        yield reading.row(place, item)
        return
    source, day = item.get("source"), item.get("date")
    day = day if _text(day) else reading.written(item, "updated_at", "created_at")
    owner = next(filter(None, (_owner(item.get(name)) for name in ("user_id", "user"))), "")
    for name, value in item.items():
        if name not in _LIST_FIELDS and value not in (None, "", [], {}) and not (name == "user" and _owner(value)):
            reading.unread[name] = None
    yield reading.row(source if _text(source) else place, item["text"], day, (owner,))


_LIST_FIELDS = ("id", "text", "source", "date", "updated_at", "created_at", "user_id")


def _mem0(item: dict, place: str, reading: Reading) -> Iterator[Row]:
    text = item["data"] if item.get("memory") is None and "data" in item else item["memory"]
    owner = _owner(item.get("user_id"))
    if not owner and (agent := _owner(item.get("agent_id"))):
        owner = f"agent {agent}"
    row = reading.row(
        _source("mem0", item.get("id"), place), text, reading.written(item, "updated_at", "created_at"), (owner,)
    )
    # The last day counts, and a date that cannot be read ends nothing: mem0's own rule.
    ended = reading.utc_day(item.get("expiration_date"))
    if item.get("event") == "DELETE":  # the answer to an addition lists what it removed, too
        row = _left_out(row, "deleted")
    yield _left_out(row, f"expired: {ended}") if ended and ended < reading.on else row


def _langgraph(item: dict, place: str, reading: Reading) -> Iterator[Row]:
    namespace = item.get("namespace")
    parts = namespace if isinstance(namespace, list | tuple) else namespace.split("/") if _text(namespace) else []
    owner = "/".join(str(part).replace("/", "%2F") for part in parts)
    key = item.get("key")
    source = f"langgraph:{owner}/{key}" if _text(key) else place
    value, others, names = item["value"], set(), ""
    while isinstance(value, dict):
        names = _names(value)
        field = next((name for name in _TEXTS if name in value), None)
        if field is None:
            break
        others |= set(value) - {field, "kind"}
        value = value[field]
    day = reading.written(item, "updated_at", "created_at")
    if isinstance(value, dict):
        yield Row(source, f"(fields: {names})", day, (owner,), "structured data without a text")
        return
    if others:
        reading.remark(f"other fields of the values are not read: {', '.join(sorted(others))}")
    yield reading.row(source, value, day, (owner,))


_TEXTS = ("content", "data", "text", "memory")


def _zep(item: dict, place: str, reading: Reading) -> Iterator[Row]:
    owner = owner_of_page(item)
    row = reading.row(
        _source("zep", item.get("uuid"), place), item["fact"], reading.written(item, "created_at"), (owner,)
    )
    begins, *ends = (reading.utc_day(item.get(name)) for name in ("valid_at", "invalid_at", "expired_at"))
    ended = min(filter(None, ends), default=None)
    if ended and ended <= reading.on:
        row = _left_out(row, f"no longer valid: {ended}")
    elif begins and begins > reading.on:
        row = _left_out(row, f"not yet valid: {begins}")
    yield row


def _letta(item: dict, place: str, reading: Reading) -> Iterator[Row]:
    reading.remark("archival passages are not in an agent file")
    agents = [agent for agent in item["agents"] if isinstance(agent, dict)]
    names = Counter(agent.get("name") for agent in agents if _text(agent.get("name")))
    owners: dict[str, list[str]] = {}
    everybody: list[str] = []
    blocks = [(block, None) for block in item["blocks"]]
    for position, agent in enumerate(agents, start=1):
        name = agent.get("name")
        if names[name] != 1:
            name = agent["id"] if _text(agent.get("id")) else f"agent {position}"
        everybody.append(name)
        for block in agent.get("block_ids") or ():
            owners.setdefault(str(block), []).append(name)
        blocks += [(block, name) for block in agent.get("memory_blocks") or ()]
    others = {}
    for position, (block, agent) in enumerate(blocks, start=1):
        if not isinstance(block, dict):
            yield Row(f"{place} block {position}", f"({_kind(block)})", reason="of another shape")
            continue
        number, label = block.get("id"), block.get("label")
        label = label if _text(label) else "block"
        source = f"letta:{number if _text(number) else f'block {position}'}/{label}"
        linked = [agent] if agent else owners.get(str(number), [""])
        whose = tuple(everybody if len(agents) == 1 else linked)
        value = block.get("value")
        row = reading.row(source, value, None, whose)
        if row.reason:
            yield row
        elif label.casefold() == "persona":
            yield _left_out(row, "the agent's own persona")
        else:
            if label.casefold() != "human":
                others[label] = None
            yield from text_rows(text_items(value), lambda found, at=source: _at(at, found), reading, None, whose)
    if others:
        reading.remark(f"blocks that are not 'human' were read too: {', '.join(others)}")


def _claude(item: dict, place: str, reading: Reading) -> Iterator[Row]:
    reading.remark("prose was split into statements, so far as that can be done (best effort)")
    owner = _owner(item.get("account_uuid"))
    texts: list[tuple[str, object, object]] = [("conversations_memory", item.get("conversations_memory"), None)]
    projects, files = item.get("project_memories"), item.get("memory_files")
    if isinstance(projects, dict):
        texts += [(f"project_memories/{project}", text, None) for project, text in projects.items()]
    else:
        texts.append(("project_memories", projects, None))
    for position, found in enumerate(files if isinstance(files, list) else [], start=1):
        path = found.get("path") if isinstance(found, dict) else None
        name = f"memory_files/{str(path).lstrip('/') if _text(path) else position}"
        texts.append((name, found.get("content"), found) if isinstance(found, dict) else (name, found, None))
    if files is not None and not isinstance(files, list):
        texts.append(("memory_files", files, None))
    for name, text, found in texts:
        if text is None or text == "":
            continue
        row = reading.row(f"claude:{name}", text, None, (owner,))
        if row.reason:
            yield row
            continue
        day = reading.written(found, "updated_at") if found else None
        yield from text_rows(
            text_items(text, prose=True), lambda part, at=row.source: _at(at, part), reading, day, (owner,)
        )
    for name in item:
        if name not in ("conversations_memory", "project_memories", "memory_files", "account_uuid") and item[name]:
            reading.remark(f"{name!r} is not read")


def _at(source: str, item: Item) -> str:
    return "/".join([source, *item.under]) + f" line {item.line}" + (f" {item.box}" if item.box else "")


def _left_out(row: Row, reason: str) -> Row:
    return row if row.reason else replace(row, reason=reason)


def _source(kind: str, number: object, place: str) -> str:
    return f"{kind}:{number}" if _text(number) or isinstance(number, int) else place


def _owner(value: object) -> str:
    """A name, or a number that stands for one; empty for anything else."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value if _text(value) else ""


def _text(value: object) -> bool:
    return isinstance(value, str) and not isinstance(value, NotJson) and bool(value.strip())


def _names(record: dict) -> str:
    names = list(record)
    return ", ".join(names[:6]) + (", …" if len(names) > 6 else "") or "none"


# Kind → (its name in a sentence, the reader of one item).
KINDS = {
    "list": ("a JSON list", _list),
    "mem0": ("mem0", _mem0),
    "langgraph": ("a LangGraph store", _langgraph),
    "zep": ("Zep facts", _zep),
    "letta": ("a Letta agent file", _letta),
    "claude": ("Claude's memories", _claude),
}
