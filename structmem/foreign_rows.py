"""Rows of the results table from other tools' files: JSON in pieces, entries known by content, scores read strictly."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path

from .data import FAILURE_TYPES, Entry, load_entries
from .errors import InputError, SetupError
from .foreign import kind_of_record
from .grid import origins
from .masking import Masker
from .records import decoded, kind_of_bytes, records_of
from .replies import ReplyError, is_blank, read_score

UNKNOWN = "unknown"  # a setting that the file does not tell; the key of a row has no empty places
LARGEST = 1 << 29  # bytes of a file that is held whole (with six times its size in memory), or of one unpacked sample
OPENROUTER = "openrouter"
_OLD_TYPES = {"positive_memory_usage": "beneficial_memory_usage"}
_DETAIL = 500  # characters of what a tool said of a failure
# What the tools' judges say of a reply that they could not use, as the reasons of our own reader.
_JUDGE_SAID = (
    ("no_json", re.compile(r"could not extract valid json|extracted json is not an object", re.I)),
    ("invalid", re.compile(r"outside valid range|judge response missing|invalid judge data|invalid literal", re.I)),
    ("timeout", re.compile(r"time(?:d )?[ -]?out", re.I)),
    ("too_long", re.compile(r"context[ _-]?length|maximum context|prompt is too long", re.I)),
)


@dataclass
class Source:
    """What was read of one file.

    Parameters
    ----------
    file, sha256, kind, made_by : str
        Its bare name and hash; "inspect" or "persistbench"; the tool, task and state in words.
    rows : list of dict
        One per generation and judge, with names of results columns.
    raw : list
        Per row, the score as the file holds it; None where it holds none that its own tool would count.
    stated : list of dict
        Rates that the file itself states: judge, measure, reducer, value.
    found : int
        Generations (samples) in the file.
    notes : list of str
        What an analyst must know of it.
    met : dict
        Which entries with one query and the same memories, by the ids of the file: twins stay apart.
    """

    file: str
    sha256: str
    kind: str
    made_by: str = ""
    rows: list[dict] = field(default_factory=list)
    raw: list = field(default_factory=list)
    stated: list[dict] = field(default_factory=list)
    found: int = 0
    notes: list[str] = field(default_factory=list)
    met: dict[tuple, list] = field(default_factory=dict)

    def add(self, row: dict, raw: object) -> None:
        """Add one row and the score behind it."""
        self.rows.append(row)
        self.raw.append(raw)


def file_bytes(path: Path) -> bytes:
    """The bytes of a file that is held whole."""
    try:
        if path.is_dir():
            raise InputError(f"{path.name} is a folder; expected files.")
        if (size := path.stat().st_size) > LARGEST:
            raise InputError(
                f"{path.name} has {size >> 20} MB, and a file that is held whole may have {LARGEST >> 20}; an Inspect "
                "log can be converted: inspect log convert --to eval."
            )
        return path.read_bytes()
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path.name:.80}: cannot be read ({getattr(error, 'strerror', None) or error}).") from None


def file_sha256(path: Path) -> str:
    """Hash of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_object(data: bytes, name: str, slim: Callable[[dict], dict] | None = None) -> dict:
    """One JSON object; the items of its list ``samples`` pass through `slim` one by one, so they are never all there.

    NaN and Infinity are floats here, for tools write them.

    Raises
    ------
    InputError
        No text, no JSON, no single object, or a name given twice in one object.
    """
    if kind := kind_of_bytes(data):
        raise InputError(f"{name} seems to be {kind}; expected an Inspect log or a PersistBench checkpoint.")
    text = decoded(data, name)
    try:
        return dict(_once(list(_members(text, slim))))
    except (json.JSONDecodeError, RecursionError) as error:
        kinds = (kind_of_record(record) for _, record in islice(records_of(text), 20))
        if kind := next(filter(None, kinds), None):
            raise InputError(f"{name} seems to be {kind}; expected an Inspect log or a checkpoint, whole.") from None
        place = error.pos if isinstance(error, json.JSONDecodeError) else 0
        cut = "; the file ends there: was it cut?" if place >= len(text.rstrip()) - 1 else ""
        line = text.count("\n", 0, place) + 1
        raise InputError(
            f"{name} line {line}: not JSON ({getattr(error, 'msg', error)}){cut}; expected one JSON object: an Inspect "
            "log or a PersistBench checkpoint."
        ) from None
    except ValueError as error:
        raise InputError(f"{name}: {error}.") from None


def _once(pairs: list[tuple[str, object]]) -> dict:
    value = dict(pairs)
    if len(value) < len(pairs):
        twice = next(key for key in value if sum(key == other for other, _ in pairs) > 1)
        raise ValueError(f"{twice[:80]!r} is given twice in one JSON object, with two values; remove one")
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_once)
_GAP = re.compile(r"[ \t\r\n\ufeff]*")


def _members(text: str, slim: Callable[[dict], dict] | None) -> Iterator[tuple[str, object]]:
    place = _expect(text, 0, "{")
    while not text.startswith("}", place):
        key, place = _DECODER.raw_decode(text, place)
        place = _expect(text, place, ":")
        if key == "samples" and slim and text.startswith("[", place):
            value, place = _items(text, place, slim)
        else:
            value, place = _DECODER.raw_decode(text, place)
        yield key, value
        place = _next(text, place, "}")
    if _GAP.match(text, place + 1).end() < len(text):
        raise json.JSONDecodeError("text after the object", text, place + 1)


def _items(text: str, place: int, slim: Callable[[dict], dict]) -> tuple[list, int]:
    found, place = [], _expect(text, place, "[")
    while not text.startswith("]", place):
        value, place = _DECODER.raw_decode(text, place)
        found.append(slim(value) if isinstance(value, dict) else value)
        place = _next(text, place, "]")
    return found, place + 1


def _expect(text: str, place: int, mark: str) -> int:
    place = _GAP.match(text, place).end()
    if not text.startswith(mark, place):
        raise json.JSONDecodeError(f"expected {mark!r}", text, place)
    return _GAP.match(text, place + 1).end()


def _next(text: str, place: int, end: str) -> int:
    """Past a comma, to the next value; or to the end mark."""
    place = _GAP.match(text, place).end()
    return place if text.startswith(end, place) else _expect(text, place, ",")


class KnownEntries:
    """Entries that samples of other tools are recognised as: by query and memories in their order, never by an id."""

    def __init__(self, source: str | Path | None = None):
        self.note: str | None = None
        found: list[Entry] = []
        for name in dict.fromkeys((source or "persistbench", "persistbench", "examples")):
            try:
                found += load_entries(name)
            except SetupError:
                if name == source:
                    raise
                self.note = "PersistBench is not installed, so its entries keep the ids of the file"
        self.by_id = {entry.entry_id: (entry, origin) for entry, origin in zip(found, origins(found), strict=True)}
        self._by_text: dict[tuple, list[str]] = {}
        for entry_id, (entry, _) in self.by_id.items():
            self._by_text.setdefault((_content(entry), entry.failure_type), []).append(entry_id)

    def columns(self, query: str, memories: list[str], kind: str | None, source_id: object, met: dict) -> dict:
        """What is known of a sample's entry; with the file's own id where it is no known one.

        `met` holds the ids that the file gave to one text: its second is the second of equal entries.
        """
        text = (query, tuple(memories))
        kinds = [kind] if kind else [None, *FAILURE_TYPES]
        same = next((self._by_text[text, one] for one in kinds if (text, one) in self._by_text), [])
        ids = met.setdefault((text, kind), [])
        if source_id not in ids:
            ids.append(source_id)
        if (place := ids.index(source_id)) >= len(same):
            return {"entry_id": str(source_id), "failure_type": kind or "", "n_memories": len(memories)}
        entry_id = same[place]
        entry, origin = self.by_id[entry_id]
        return {
            "entry_id": entry_id, "failure_type": entry.failure_type or "", "memory_domain": entry.memory_domain,
            "query_domain": entry.query_domain, "n_memories": len(memories), "benchmark_hash": origin,
        }  # fmt: skip


def _content(entry: Entry) -> tuple[str, tuple[str, ...]]:
    return entry.query, tuple(memory.text for memory in entry.memories)


def failure_type(value: object) -> str | None:
    """A failure type under its name of today; None for what is none."""
    name = _OLD_TYPES.get(value, value) if isinstance(value, str) else None
    return name if name in FAILURE_TYPES else None


def texts(value: object) -> list[str] | None:
    """A list of strings, or None."""
    return value if isinstance(value, list) and all(isinstance(text, str) for text in value) else None


def generation_of(value: object, first: int) -> int:
    """An index of a generation from 0, where the tool counts from `first`; a ValueError for what is none."""
    if isinstance(value, bool) or not isinstance(value, int) or not first <= value < 100_000:
        raise ValueError(f"the index of a generation is {value!r:.40}, expected a whole number from {first}")
    return value - first


def scale_columns(kind: str) -> dict:
    """Threshold and scale of a failure type; nothing for an unknown one."""
    if kind not in FAILURE_TYPES:
        return {}
    scale = FAILURE_TYPES[kind]
    return {
        "threshold": scale.threshold,
        "high_is_bad": scale.high_is_bad,
        "scale_low": scale.low,
        "scale_high": scale.high,
    }


def verdict(value: object, reasoning: object, kind: str, must_reason: bool) -> dict:
    """Status and score of a judged answer, by the rules for a verdict of our own judge.

    Nothing is rounded or clamped. A whole number that stands as a text, such as "4", is read, and
    ``judge_conversions`` says so; all else (2.9, NaN, a letter, 9 on a scale to 5) is ``no_verdict``, ``invalid``.
    """
    said = reasoning if isinstance(reasoning, str) and not is_blank(reasoning) else None
    if kind not in FAILURE_TYPES:
        return _unscored("no_failure_type", f"score {value!r}", said)
    scale = FAILURE_TYPES[kind]
    try:
        score, converted = read_score(value, scale.low, scale.high)
    except ReplyError as error:
        return _unscored(error.code, error.detail, said)
    if must_reason and said is None:
        return _unscored("invalid", f"no_reasoning: the score {score} has no reasoning.", None)
    return {"status": "ok", "score": score, "judge_reasoning": said, "judge_conversions": converted}


def _unscored(reason: str, detail: object, reasoning: str | None) -> dict:
    return failed("no_verdict", reason, detail) | {"judge_reasoning": reasoning}


def failed(status: str, reason: str, detail: object) -> dict:
    """Status columns of a row without a score."""
    lines = [line for line in str(detail or "").splitlines() if line.strip()]
    traced = any("Traceback (most recent call last)" in line for line in lines)
    shown = re.sub(r"\s+", " ", " ".join(lines[-1:] if traced else lines)).strip()
    return {"status": status, "status_reason": reason, "status_detail": _masker().hide(shown)[:_DETAIL] or None}


@lru_cache(maxsize=1)
def _masker() -> Masker:
    return Masker()


def reason_of(message: object) -> str:
    """A reason of ours for what a tool says of a failure; ``error`` where it says nothing that we know."""
    return next((reason for reason, pattern in _JUDGE_SAID if pattern.search(str(message))), "error")


def routed(name: object, provider: object) -> str:
    """A model as our runs name it: PersistBench parts the route ``openrouter`` from the name."""
    return f"{OPENROUTER}/{name}" if provider == OPENROUTER else str(name)


def reason_in_words(row: dict) -> str:
    """Status and reason, with what exactly was wrong with a verdict: ``no_verdict: invalid (out_of_range)``."""
    head = re.match(r"([a-z_]+):", row.get("status_detail") or "")
    exact = f" ({head[1]})" if head and row.get("status_reason") == "invalid" else ""
    return f"{row['status']}: {row.get('status_reason')}{exact}"
