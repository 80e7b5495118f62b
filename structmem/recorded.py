"""Recorded calls as text: JSON lines that can be committed, read and replayed, but not added to."""

from __future__ import annotations

import json
import os
import re
import tempfile
import warnings
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

from .calls import ROLES, STATUSES, Call
from .errors import StoreError

_NAMES = tuple(f.name for f in fields(Call) if f.name != "from_store")
_TYPES = {name: str | None for name in _NAMES} | {
    "key": str, "status": str, "model": str, "called_at": str, "role": str, "truncated": bool, "params_sent": dict,
    "generation": int, "replicate": int, "attempt": int,
    **dict.fromkeys(("cost_usd", "latency_s"), int | float | None),
    **dict.fromkeys(("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens", "requests"), int | None),
}  # fmt: skip
_KEY = re.compile(r"[0-9a-f]{64}")


def _refuse(constant: str):
    raise ValueError(constant)


def _halved(record: dict) -> bool:
    """Whether a text of a record holds half of a surrogate pair."""
    try:
        json.dumps(record, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


class _Twice(Exception):
    """One key of a record stands there twice."""


def _once(pairs: list[tuple[str, object]]) -> dict:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise _Twice(next(name for name in names if names.count(name) > 1))
    return found


class Recorded:
    """A read-only store over one ``.jsonl`` file, or over all of a folder.

    Raises
    ------
    StoreError
        If a line is no record (no JSON, unknown fields) or two records of one key differ; the message names file and
        line.

    Notes
    -----
    A file that ends within a record, as a copy that broke off, is read up to there, with a warning.
    """

    read_only = True

    def __init__(self, where: str | os.PathLike):
        self.path = str(where)
        path = Path(where)
        files = sorted(path.rglob("*.jsonl")) if path.is_dir() else [path]
        if not files:
            raise StoreError(f"The folder {path} holds no recorded calls (*.jsonl); give another folder or a file.")
        self._calls: dict[str, Call] = {}
        for file in files:
            self._read(file)

    def _read(self, file: Path) -> None:
        try:
            data = file.read_bytes()
        except OSError as error:
            raise StoreError(f"The recorded calls in {file} cannot be read ({error}).") from None
        *whole, rest = data.split(b"\n")
        for number, line in enumerate([*whole, rest], 1):
            if not line.strip():
                continue
            where = f"{file} line {number}"
            try:
                record = json.loads(line.decode("utf-8"), parse_constant=_refuse, object_pairs_hook=_once)
            except _Twice as error:
                raise StoreError(
                    f"{where}: the field {error.args[0]!r} is there twice; restore the file, or export it again."
                ) from None
            except (ValueError, RecursionError):
                if number > len(whole):  # no line end after it
                    warnings.warn(
                        f"{where}: the file ends within this record, so its call is missing; the {number - 1} lines "
                        "before it are kept. Copy or export the file again.",
                        stacklevel=3,
                    )
                    return
                raise StoreError(
                    f"{where}: this is not a whole JSON record (torn or edited?); expected one recorded call a line. "
                    "Restore the file, or export it again."
                ) from None
            if not isinstance(record, dict) or not _KEY.fullmatch(str(record.get("key"))):
                raise StoreError(f"{where}: 'key' is not 64 hex digits; expected one recorded call a line.")
            if record.get("status") not in STATUSES:
                raise StoreError(f"{where}: 'status' is {record.get('status')!r}; expected one of {list(STATUSES)}.")
            if unknown := set(record) - set(_NAMES):
                raise StoreError(f"{where}: unknown field {sorted(unknown)[0]!r}; it may come from a newer structmem.")
            wrong = [
                name
                for name, value in record.items()
                if not isinstance(value, _TYPES[name]) or isinstance(value, bool) != (name == "truncated")
            ]
            if wrong:
                raise StoreError(
                    f"{where}: {wrong[0]!r} is {record[wrong[0]]!r:.60}; restore the file, or export it again."
                )
            if (role := record.get("role", "answer")) not in ROLES:
                raise StoreError(f"{where}: 'role' is {role!r:.60}; expected one of {list(ROLES)}.")
            if b"\\ud" in line.lower() and _halved(record):
                raise StoreError(
                    f"{where}: a text holds half a character (a lone surrogate), which no file can hold; restore the "
                    "file, or export it again."
                )
            call = Call(**record, from_store=True)
            other = self._calls.setdefault(call.key, call)
            if "no_response" in (call.status, other.status):  # a finished call counts more than a failed one
                self._calls[call.key] = call if other.status == "no_response" else other
            elif other != call:
                raise StoreError(f"{where}: key {call.key[:12]} is there twice with different contents; remove one.")

    def get(self, key: str) -> Call | None:
        """The finished call (``ok`` or ``rejected``) under `key`, or None."""
        call = self._calls.get(key)
        return call if call is not None and call.status != "no_response" else None

    def get_many(self, keys: Iterable[str]) -> dict[str, Call]:
        """The finished calls among `keys`, by key."""
        return {key: call for key in keys if (call := self.get(key)) is not None}

    def last_failure(self, key: str) -> Call | None:
        """The ``no_response`` recorded under `key`, or None."""
        call = self._calls.get(key)
        return call if call is not None and call.status == "no_response" else None

    def finished(self) -> list[Call]:
        """Every recorded call that counts."""
        return [call for call in self._calls.values() if call.status != "no_response"]

    def failures(self) -> list[Call]:
        """Every recorded ``no_response``."""
        return [call for call in self._calls.values() if call.status == "no_response"]

    def info(self) -> dict:
        """Path and numbers of calls by role and status."""
        names = sorted(f"{call.role} {call.status}" for call in self._calls.values())
        return {"path": self.path, "calls": {name: names.count(name) for name in dict.fromkeys(names)}}

    def close(self) -> None:
        """Nothing to close; here so that every store can be closed."""


def write_records(path: str | os.PathLike, calls: Iterable[Call]) -> int:
    """Write calls as JSON lines in the given order, at once or not at all; fields that are None are left out.

    Only the owner can read the file: answers may quote memories.

    Returns
    -------
    int
        Number of records written.

    Raises
    ------
    StoreError
        If the file cannot be written; an older file of that name is then still there.
    """
    path, count, temporary = Path(path), 0, None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            for call in calls:
                values = ((name, getattr(call, name)) for name in _NAMES)
                record = {name: value for name, value in values if value is not None}
                file.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
                count += 1
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise StoreError(f"The calls could not be exported to {path} ({error.strerror}); give another path.") from None
    finally:
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)
    return count
