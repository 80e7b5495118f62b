"""Files of an audit: cells that no spreadsheet runs, a sheet that any spreadsheet saved, and its key; owner only."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import pandas as pd

from .columns import KEY
from .errors import InputError
from .records import read_text

KEY_FILE_VERSION = 1
SHEET = ("item", "failure_type", "question", "memories", "answer", "scale", "score", "note")
# What a spreadsheet would run as a formula, also behind blanks and in full width; the apostrophe is what we put before.
_DIGESTED = 8_000  # characters of an answer that tell it from others
_FORMULA = re.compile(r"\s*[=+\-@＝＋－＠]|['\t\r\n]")


def sheet_text(lines: Iterable[Iterable[str]]) -> str:
    """A sheet as CSV: every cell quoted, so that line ends stay inside their cell."""
    table = io.StringIO()
    writer = csv.writer(table, quoting=csv.QUOTE_ALL, lineterminator="\r\n")
    writer.writerows([SHEET, *([safe(cell) for cell in line] for line in lines)])
    return table.getvalue()


def safe(text: str) -> str:
    """A cell that no spreadsheet takes for a formula; `unsafe` undoes it."""
    return f"'{text}" if _FORMULA.match(text) else text


def unsafe(text: str) -> str:
    """Undo `safe`."""
    return text[1:] if text.startswith("'") else text


def digest(text: str) -> str:
    """Of the first visible words alone.

    Spreadsheets change line ends and blanks, drop control characters, take an apostrophe at the start for their own,
    and cut a cell that is longer than 32,767 characters.
    """
    clean = "".join(c for c in str(text).encode("utf-8", "replace").decode() if c.isprintable() or c.isspace())
    return hashlib.sha256(" ".join(clean.split()).lstrip("' ")[:_DIGESTED].encode()).hexdigest()


def write_private(path: Path, data: bytes) -> None:
    """A new file that only its owner can read, from its first byte on."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        raise InputError(f"{path.name:.80}: cannot be written ({getattr(error, 'strerror', error)}).") from error


def json_facts(path: Path) -> dict:
    """The object that a JSON file holds; empty where it holds none."""
    try:
        facts = json.loads(read_text(path))
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        return {}
    return facts if isinstance(facts, dict) else {}


def read_key(path: Path) -> dict:
    """The facts of a key file."""
    facts = json_facts(path)
    if not {"version", "sheet", "items"} <= set(facts):
        raise InputError(f"{path.name} is no key of an audit sheet; expected the .key.json that was written with it.")
    if facts["version"] != KEY_FILE_VERSION:
        raise InputError(f"{path.name}: version {facts['version']}, expected {KEY_FILE_VERSION}: update structmem.")
    items = facts["items"] if isinstance(facts["items"], list) else [None]
    if not all(map(_is_item, items)) or len({one["item"] for one in items}) < len(items):
        raise InputError(f"{path.name}: an item is damaged or there twice; take the key as it was exported.")
    return facts


def _is_item(one: object) -> bool:
    """Whether an item of a key holds what was written, each part of its type."""
    if not isinstance(one, dict) or not isinstance(row := one.get("row"), dict) or set(row) != set(KEY):
        return False
    numbers = ("partition_draw", "generation", "replicate")
    texts = [one.get(name) for name in ("item", "stratum", "answer_sha256")]
    texts += [row[name] for name in KEY if name not in numbers]
    weight = one.get("weight")
    return (
        all(isinstance(text, str) for text in texts)
        and all(type(row[name]) is int for name in numbers)
        and isinstance(weight, (int, float))
        and 0 < weight < float("inf")
    )


def read_sheet(path: Path) -> pd.DataFrame:
    """The cells of a sheet as text, one row per item, whichever of comma, semicolon and tab parts them."""
    text = read_text(path).removeprefix("\ufeff")
    for delimiter in ",;\t":
        lines = _cells(text, delimiter)
        header = [name.strip().lower() for name in lines[0]] if lines else []
        if {"item", "score"} <= set(header):
            break
    else:
        raise InputError(f"{path.name}: no columns 'item' and 'score'; expected the sheet that audit export wrote.")
    if twice := [name for name, count in Counter(filter(None, header)).items() if count > 1]:
        raise InputError(f"{path.name}: column {twice[0]!r} is there twice.")
    lines = [[*line, *[""] * (len(header) - len(line))][: len(header)] for line in lines[1:]]
    table = pd.DataFrame(lines, columns=header, dtype=object)
    table["item"] = table["item"].str.strip()
    table = table[table["item"] != ""]
    for column in table.columns.intersection(SHEET):
        table[column] = table[column].map(unsafe)
    return table


def _cells(text: str, delimiter: str) -> list[list[str]]:
    limit = csv.field_size_limit(max(len(text), 1))  # a thousand memories are one long cell
    try:
        return [line for line in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if any(line)]
    finally:
        csv.field_size_limit(limit)


def check_items(name: str, seen: pd.Series, items: Mapping, sheet: str) -> None:
    """Refuse a sheet whose items are not, each once, those of its key."""
    unknown = [item for item in seen if item not in items]
    if unknown and not set(seen) & set(items):
        raise InputError(f"{name} belongs to another key: its items are such as {unknown[0]!r}, the key's {sheet}-….")
    if unknown:
        raise InputError(f"{name}: {len(unknown)} unknown items, such as {unknown[:3]}.")
    if twice := [item for item, count in Counter(seen).items() if count > 1]:
        raise InputError(f"{name}: {len(twice)} items are there more than once, such as {twice[:3]}.")
    if gone := [item for item in items if item not in set(seen)]:
        raise InputError(
            f"{name}: {len(gone)} of {len(items)} items are gone, such as {gone[:3]}; leave the score of an item empty "
            "rather than deleting its row."
        )
