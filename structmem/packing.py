"""A call as a row of the store, and back."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import fields
from functools import lru_cache

from .calls import Call, Request, asked, canonical, text_digest
from .schema import CALL_COLUMNS, REQUEST_COLUMNS

# In the order of Call, so that a row makes one as it is.
FIELDS = tuple(f.name for f in fields(Call) if f.name != "from_store")
COLUMNS = (*FIELDS, *REQUEST_COLUMNS)
INSERT = f"({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"
NO_REQUEST = ("[]", "{}", "{}", None)  # of a recorded call, whose request texts stay where it was made
_PARAMS_SENT, _TRUNCATED = FIELDS.index("params_sent"), FIELDS.index("truncated")

if set(FIELDS) != {"key", *CALL_COLUMNS}:
    raise AssertionError("the columns of a stored call and the fields of Call differ")

# JSON of values as they were given: unlike in the key, 1.0 stays 1.0; numpy scalars become numbers.
_dumps = json.JSONEncoder(sort_keys=True, ensure_ascii=False, default=lambda scalar: scalar.item()).encode


def selected(names: Iterable[str], present: Iterable[str]) -> str:
    """Columns to select; what an older file does not have is NULL."""
    present = set(present)
    return ", ".join(name if name in present else f"NULL AS {name}" for name in names)


def packed(call: Call) -> list:
    """The values of a call, in the order of `FIELDS`."""
    values = [getattr(call, name) for name in FIELDS]
    values[_PARAMS_SENT] = _dumps(call.params_sent)
    return values


def packed_request(request: Request, memory_set: str | None) -> tuple[tuple, list[tuple[str, str]]]:
    """The values of a request, in the order of `REQUEST_COLUMNS`, and its texts with their digests."""
    texts, parts = [], []
    for message in request.messages:
        content = message["content"]
        content = content if isinstance(content, str) else canonical(content)
        digest = text_digest(content)
        texts.append((digest, content))
        rest = {k: v for k, v in message.items() if k not in ("role", "content")} if len(message) > 2 else {}
        parts.append([message.get("role"), digest, rest])
    return (_dumps(parts), _dumps(asked(request.params)), _dumps(asked(request.options)), memory_set), texts


def unpacked(row: tuple) -> Call:
    """The call that a row with the columns `FIELDS` holds."""
    values = list(row)
    values[_TRUNCATED] = bool(values[_TRUNCATED])
    values[_PARAMS_SENT] = dict(_loads(values[_PARAMS_SENT]))
    return Call(*values, True)


@lru_cache(maxsize=4096)
def _loads(text: str) -> dict:
    return json.loads(text)
