"""The file of a MemoryBook: JSON with a version, read strictly and written in one step, for its owner only."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .data import Memory, wrap_memories
from .errors import InputError
from .records import BadRecord, not_json, records_of
from .taxonomy import Domain, Taxonomy
from .tree import Node

FORMAT, FORMAT_VERSION = "structmem memory book", 1
_MOST_LEVELS = 2


@dataclass(frozen=True)
class Saved:
    """What a file holds of a book.

    `structurer` is None for a function, which no file can hold; `taxonomy_sha256` is the hash by which `partition` was
    made, as written (None: that of `taxonomy`); `together` of the memories were last sorted together, and `anew` says
    that all are to be sorted again.
    """

    structure: str
    structurer: str | Callable | None
    options: Mapping
    renderer: str
    deadline_s: float
    taxonomy: Taxonomy
    memories: tuple[Memory, ...]
    partition: Node | None
    together: int
    anew: bool
    version: int
    next_id: int
    taxonomy_sha256: str = ""


def dumped(saved: Saved) -> str:
    """A book as JSON text; the partition names its memories by id, so that each text stands there once."""
    value = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "version": saved.version,
        "next_id": saved.next_id,
        "structure": saved.structure,
        "structurer": saved.structurer if isinstance(saved.structurer, str) else None,
        "options": dict(saved.options),
        "renderer": saved.renderer,
        "deadline_s": saved.deadline_s,
        "taxonomy": {
            "name": saved.taxonomy.name,
            "sha256": saved.taxonomy.sha256,
            "domains": [{"name": d.name, "definition": d.definition} for d in saved.taxonomy.domains],
        },
        "memories": [{"id": m.id, "text": m.text, "source": m.source, "date": m.date} for m in saved.memories],
        "partition": saved.partition and _by_id(saved.partition),
        "together": saved.together,
        "anew": saved.anew,
    }
    text = json.dumps(value, ensure_ascii=False, indent=1) + "\n"
    # Half of a surrogate pair, in an id for example, becomes the escape that JSON has for it.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _by_id(node: Node) -> dict:
    return {
        "label": node.label,
        "memories": [memory.id for memory in node.memories],
        "children": [_by_id(child) for child in node.children],
        "note": node.note,
    }


_TEXT, _WHOLE, _OBJECT, _LIST = (str,), (int,), (dict,), (list,)
_FIELDS: dict[str, tuple] = {
    "format": _TEXT, "format_version": _WHOLE, "version": _WHOLE, "next_id": _WHOLE, "structure": _TEXT,
    "structurer": (str, type(None)), "options": _OBJECT, "renderer": _TEXT, "deadline_s": (int, float),
    "taxonomy": _OBJECT, "memories": _LIST, "partition": (dict, type(None)), "together": _WHOLE, "anew": (bool,),
}  # fmt: skip
_NAMES = {str: "a text", int: "a whole number", dict: "an object", list: "a list", float: "a number"}
_NAMES |= {bool: "true or false", type(None): "null"}


def loaded(text: str, name: str) -> Saved:
    """Read what `dumped` wrote.

    Raises
    ------
    InputError
        With the file's name, what was found and what was expected.
    """
    try:
        value = _record(text)
        _check_fields(value, _FIELDS, "the book")
        memories = tuple(_memories(value["memories"]))
        held = {memory.id: memory for memory in memories}
        taxonomy = value["taxonomy"]
        _check_fields(taxonomy, {"name": _TEXT, "sha256": _TEXT, "domains": _LIST}, "'taxonomy'")
        domains = []
        for k, domain in enumerate(taxonomy["domains"], start=1):
            _check_fields(domain, {"name": _TEXT, "definition": _TEXT}, f"domain {k}")
            domains.append(Domain(domain["name"], domain["definition"]))
        for field, least in (("version", 0), ("next_id", 1), ("together", 0)):
            if value[field] < least:
                raise _Damaged(f"{field!r} is {value[field]}; expected a whole number from {least}")
        seen: set[str] = set()
        partition = value["partition"] and _node(value["partition"], held, seen, 0)
        return Saved(
            value["structure"], value["structurer"], value["options"], value["renderer"], value["deadline_s"],
            Taxonomy(taxonomy["name"], tuple(domains)), memories, partition, value["together"], value["anew"],
            value["version"], value["next_id"], taxonomy["sha256"],
        )  # fmt: skip
    except _Damaged as error:
        raise InputError(f"{name}: {error}. Nothing was read; take a copy that was saved before.") from None
    except InputError as error:  # of a memory or of the taxonomy
        raise InputError(f"{name}: {error} Nothing was read; take a copy that was saved before.") from None


class _Damaged(ValueError):
    """Found and expected, without the file."""


def _record(text: str) -> dict:
    if not isinstance(text, str):
        raise _Damaged(f"got {type(text).__name__}; expected the text that to_json gave")
    records = records_of(text)
    _, value = next(records, (0, None))
    if isinstance(value, BadRecord):
        raise _Damaged(str(value))
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise _Damaged(f'no memory book; expected a JSON object with "format": "{FORMAT}", as MemoryBook.save writes')
    if (more := next(records, None)) is not None:
        raise _Damaged(f"something follows after the book ({str(more[1])[:60]}); expected one JSON object")
    version = value.get("format_version")
    if type(version) is int and version > FORMAT_VERSION:
        raise _Damaged(
            f"written by a newer structmem (format version {version}; this one reads {FORMAT_VERSION}); update it"
        )
    if version != FORMAT_VERSION or type(version) is not int:
        raise _Damaged(f"'format_version' is {version!r:.40}; expected {FORMAT_VERSION}")
    if strange := next(iter(not_json(value, "the book")), None):
        raise _Damaged(f"{strange[0]} is {strange[1]}; expected a JSON value, given once")
    return value


def _check_fields(value: object, fields: Mapping[str, tuple], place: str) -> None:
    if not isinstance(value, dict) or set(value) != set(fields):
        found = sorted(value)[:20] if isinstance(value, dict) else f"{value!r:.60}"
        raise _Damaged(f"{place} has {found}; expected the fields {sorted(fields)}")
    for field, kinds in fields.items():
        if not isinstance(value[field], kinds) or isinstance(value[field], bool) and bool not in kinds:
            expected = " or ".join(_NAMES[kind] for kind in kinds)
            raise _Damaged(f"{field!r} of {place} is {value[field]!r:.60}; expected {expected}")


def _memories(values: list) -> Iterator[Memory]:
    maybe = (str, type(None))
    for k, value in enumerate(values, start=1):
        _check_fields(value, {"id": _TEXT, "text": _TEXT, "source": maybe, "date": maybe}, f"memory {k}")
    yield from wrap_memories(Memory(**value) for value in values)


def _node(value: object, held: Mapping[str, Memory], seen: set[str], depth: int) -> Node:
    maybe = (str, type(None))
    place = f"a group at level {depth} of 'partition'"
    _check_fields(value, {"label": maybe, "memories": _LIST, "children": _LIST, "note": maybe}, place)
    if depth > _MOST_LEVELS or (value["label"] is None) != (depth == 0) or value["label"] == "":
        raise _Damaged(f"{place} has the label {value['label']!r:.60}; expected at most two levels of named groups")
    for memory_id in value["memories"]:
        if not isinstance(memory_id, str) or memory_id not in held:
            raise _Damaged(f"{place} names the memory {memory_id!r:.60}, which the book does not hold")
        if memory_id in seen:
            raise _Damaged(f"{place} names the memory {memory_id!r:.60} a second time; expected each once")
        seen.add(memory_id)
    children = tuple(_node(child, held, seen, depth + 1) for child in value["children"])
    labels = [child.label for child in children]
    if twice := next((label for label in labels if labels.count(label) > 1), None):
        raise _Damaged(f"{place} has two groups named {twice!r:.60}; expected names that differ")
    return Node(value["label"], tuple(held[i] for i in value["memories"]), children, value["note"])


def write(path: Path, text: str) -> None:
    """Write text to a neighbour that only its owner can read, and put it in place in one step.

    Raises
    ------
    InputError
        If that fails; the old file is then as it was.
    """
    temporary = None
    try:
        path = Path(os.path.realpath(path.expanduser()))  # the file behind a link, not the link, is replaced
        if path.exists() and not path.is_file():  # os.replace would put a file in place of a device or a pipe
            raise OSError("there is something else than a file")
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name[:40]}.", suffix=".part", dir=path.parent)
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:  # mkstemp made it mode 600
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except (OSError, ValueError, RuntimeError) as error:  # ValueError: a null character; RuntimeError: "~nobody"
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"{path.name:.80}: the book cannot be saved ({reason}); an older file is as it was."
        ) from error
    finally:
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)
