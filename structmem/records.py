"""Text files and JSON records read strictly: encodings, line numbers, and nothing lost or guessed."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from .errors import InputError

# What a file's first bytes say; such a file is no text.
_BINARY = (
    (b"PK\x03\x04", "a zip archive (Inspect's .eval logs are such; structmem import reads them)"),
    (b"\x1f\x8b", "a file packed by gzip"),
    (b"\x28\xb5\x2f\xfd", "a file packed by zstd"),
    (b"PAR1", "a Parquet table"),
    (b"SQLite format 3", "an SQLite database"),
    (b"%PDF", "a PDF document"),
)
_SPACE = " \t\r\n\ufeff"  # joined files leave a BOM before a record


class NotJson(str):
    """What stands where strict JSON has no value: NaN, Infinity, or a name given twice."""


class BadRecord(ValueError):
    """Stands for a record that is no JSON; its text says what was found and what was expected."""


def read_text(path: str | Path) -> str:
    """Read a text file as UTF-8 (with or without BOM), or as the UTF-16 or UTF-32 that its first bytes show.

    Raises
    ------
    InputError
        No such file, or bytes that do not decode: file, line, byte offset and what to do.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{str(path)[:200]}: cannot be read ({reason}); expected a text file.") from None
    return decoded(data, path.name)


def kind_of_bytes(data: bytes) -> str | None:
    """What a file seems to be by its first bytes; None for text."""
    return next((kind for start, kind in _BINARY if data.startswith(start)), None)


def decoded(data: bytes, name: str) -> str:
    """The text of a file's bytes; see `read_text`."""
    if kind := kind_of_bytes(data):
        raise InputError(f"{name} seems to be {kind}; nothing was read. Expected a text file.")
    encoding = json.detect_encoding(data)
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{name} line {line}: byte 0x{data[error.start]:02x} at offset {error.start} is not {encoding};"
            f" expected UTF-8. Save the file as UTF-8; {_likely(data)} -t utf-8 {name} > new"
        ) from None


def _likely(data: bytes) -> str:
    """What bytes that are no UTF-8 may be from, and the command that reads them."""
    kana = "[ぁ-んァ-ヺ]"
    for encoding, signs in (("euc-jp", kana), ("cp932", f"{kana}|[一-龯]{{2}}")):  # an é before a letter is one kanji
        try:
            if re.search(signs, data.decode(encoding)):
                return f"its bytes read as Japanese in {encoding}: iconv -f {encoding}"
        except UnicodeDecodeError:
            continue
    return "one from an older Windows program: iconv -f cp1252"


def records_of(text: str) -> Iterator[tuple[int, object]]:
    """Yield (line number from 1, value) for each record of a JSON array, of one JSON object, or of JSON lines.

    The three are told apart by content, never by the file's name. Lines end at a newline only: other separators, such
    as U+2028, are text. A record that cannot be read is yielded as `BadRecord`; NaN, Infinity and names given twice
    are yielded in place as `NotJson`.
    """
    start = _skip(text, 0)
    if text.startswith("[", start):
        return _array(text, start)
    lines = [(number, line.strip(_SPACE)) for number, line in enumerate(text.split("\n"), start=1)]
    lines = [(number, line) for number, line in lines if line]
    if _is_laid_out(lines):
        return _object(text, start)
    return _lines(lines, text.endswith("\n"))


def not_json(value: object, place: str) -> Iterator[tuple[str, str]]:
    """Yield (place, what was found) for every `NotJson` inside a value."""
    if isinstance(value, NotJson):
        yield place, str(value)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from not_json(item, f"{place} {key!r}")
    elif isinstance(value, list):
        for position, item in enumerate(value, start=1):
            yield from not_json(item, f"{place} item {position}")


def _object_once(pairs: list[tuple[str, object]]) -> dict:
    value = dict(pairs)
    if len(value) != len(pairs):  # plain readers keep the last of two and say nothing
        counts = Counter(name for name, _ in pairs)
        value |= {name: NotJson(f"given {count} times") for name, count in counts.items() if count > 1}
    return value


_DECODER = json.JSONDecoder(parse_constant=NotJson, object_pairs_hook=_object_once)


def _decode(text: str, position: int) -> tuple[object, int]:
    try:
        return _DECODER.raw_decode(text, position)
    except json.JSONDecodeError as error:
        return BadRecord(f"not JSON: {error.msg} at column {error.colno}; expected a JSON object"), position
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, nesting without end
        return BadRecord(f"not usable JSON: {error}; expected a JSON object"), position


def _is_laid_out(lines: list[tuple[int, str]]) -> bool:
    """Whether the text is one object over several lines, and not a record on each line."""
    if len(lines) < 2 or not lines[0][1].startswith("{") or lines[1][1].startswith("{"):
        return False
    return isinstance(_decode(lines[0][1], 0)[0], BadRecord)


def _object(text: str, start: int) -> Iterator[tuple[int, object]]:
    value, end = _decode(text, start)
    line = text.count("\n", 0, start) + 1
    yield line, value
    if not isinstance(value, BadRecord) and (rest := _skip(text, end)) < len(text):
        yield line + text.count("\n", start, rest), BadRecord("text after the object; expected an array of objects")


def _lines(lines: list[tuple[int, str]], ended: bool) -> Iterator[tuple[int, object]]:
    for number, line in lines:
        value, end = _decode(line, 0)
        if isinstance(value, BadRecord):
            if number == lines[-1][0] and not ended:
                value = BadRecord(f"{value} (the file ends inside this line: it may have been cut)")
        elif end < len(line):
            value = BadRecord(f"more text after the record, from column {end + 1}; expected one record per line")
        yield number, value


def _array(text: str, start: int) -> Iterator[tuple[int, object]]:
    line, counted = text.count("\n", 0, start) + 1, start
    position = _skip(text, start + 1)
    first = True
    while not text.startswith("]", position):
        if not first:
            if not text.startswith(",", position):
                found = repr(text[position]) if position < len(text) else "the end of the file"
                yield line, BadRecord(f"{found} after this record; expected ',' or ']'")
                return
            position = _skip(text, position + 1)
        line, counted, first = line + text.count("\n", counted, position), position, False
        value, end = _decode(text, position)
        yield line, value
        if isinstance(value, BadRecord):
            return
        position = _skip(text, end)
    if (rest := _skip(text, position + 1)) < len(text):
        yield line + text.count("\n", counted, rest), BadRecord("text after the array; expected nothing more")


def _skip(text: str, position: int) -> int:
    while position < len(text) and text[position] in _SPACE:
        position += 1
    return position
