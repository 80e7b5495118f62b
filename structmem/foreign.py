"""Files of other tools, known by their shape: named where they are refused, never half-read."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from .errors import InputError
from .records import decoded, kind_of_bytes, records_of

_INSPECT, _CHECKPOINT = "an Inspect log", "a checkpoint of PersistBench's own runner"
# Names of fields that together say whose record it is.
_RECORDS = (
    ({"eval", "samples"}, _INSPECT),
    ({"eval", "status", "version"}, _INSPECT),
    ({"mapping"}, "an export of ChatGPT conversations"),
    ({"chat_messages"}, "an export of Claude conversations"),
    ({"conversations_memory"}, "an export of Claude memories"),
    ({"memory_files", "account_uuid"}, "an export of Claude memories"),
    ({"agents", "blocks"}, "a Letta agent file"),
    ({"fact", "uuid"}, "an export of Zep facts"),
    ({"facts"}, "an export of Zep facts"),
    ({"namespace", "key", "value"}, "an export of LangMem or LangGraph memories"),
    ({"memory", "user_id"}, "an export of mem0 memories"),
    ({"data", "user_id"}, "an export of mem0 memories"),
    ({"key", "role", "status", "params_sent"}, "recorded calls of structmem"),
    ({"cells", "nbformat"}, "a notebook"),
    ({"core_memory", "messages"}, "an older Letta agent file"),
    ({"messages"}, "a list of chat messages"),
    ({"entry_id", "response"}, "rows of results"),
    ({"entry_id", "score"}, "rows of results"),
    ({"label", "children"}, "a partition of structmem"),
    ({"domains"}, "a taxonomy"),
)


def way_out(kind: str | None) -> str:
    """What reads a file of this kind, as the end of a refusal; empty where nothing of ours does."""
    return " Read it with: structmem import." if kind in (_INSPECT, _CHECKPOINT) else ""


def kind_of_record(record: object) -> str | None:
    """Whose record this seems to be; None for one of ours or of nobody known."""
    if not isinstance(record, dict) or {"query", "memories"} <= set(record):
        return None
    if isinstance(record.get("entries"), dict) and "metadata" in record:
        return _CHECKPOINT
    if isinstance(record.get("results"), list) and len(record) <= 3:
        inner = next((kind for kind in map(kind_of_record, record["results"]) if kind), None)
        return inner or (
            "an export of mem0 memories" if any("memory" in r for r in _dicts(record["results"])) else None
        )
    return next((kind for fields, kind in _RECORDS if fields <= set(record)), None)


def _dicts(items: list) -> list[dict]:
    return [item for item in items if isinstance(item, dict)]


def kind_of_file(path: Path) -> str | None:
    """What a file seems to be, by its bytes or its first records; None if nobody's."""
    try:
        data = path.read_bytes()
        if kind := kind_of_bytes(data):
            return kind
        kinds = (kind_of_record(record) for _, record in islice(records_of(decoded(data, path.name)), 20))
        return next(filter(None, kinds), None)
    except (OSError, InputError):
        return None
