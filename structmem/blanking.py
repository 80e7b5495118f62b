"""Results files of a forgotten memory: rows that were made with it lose their texts, or go."""

from __future__ import annotations

import json
import re
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from .columns import NAMES
from .errors import InputError
from .missing import completeness, missing_by_arm
from .results import _manifest_of, _manifest_says, _read_file, _replace
from .traces import Trace

# What may hold or name the memory: the context's hash too, since a guess at a short list could be tested by it.
TEXTS = (
    "response", "judge_reasoning", "model_reasoning", "headings", "status_detail", "judge_conversions",
    "context_sha256",
)  # fmt: skip
FORGOTTEN = "forgotten"  # status_reason of a row that keeps its score and has lost its texts
_DERIVED_ID = re.compile(r".+-[0-9a-f]{12}(-\d+)?")  # made from query and memories, so never another entry's
_KEYS = ("answer_key", "judge_key", "structurer_key")


@dataclass(frozen=True)
class Rows:
    """Rows of one results file that were made with a memory (`n`) and still say something of it."""

    path: Path
    n: int


@dataclass
class Tables:
    """The results tables among some files, and the ids of entries whose memory list held the memory."""

    trace: Trace
    parts: bool
    keys: Set[str]
    entry_ids: set[str]
    files: list[Path]

    def __post_init__(self) -> None:
        files, self.files = self.files, []
        for file in files:  # before any is judged: a row of one file tells of the rows of another
            table, _ = _read(file)
            if table is not None:
                self.files.append(file)
                ids = table.loc[self._by_key(table), "entry_id"].dropna()
                self.entry_ids |= {one for one in ids if _DERIVED_ID.fullmatch(str(one))}

    def found(self) -> list[Rows]:
        """Files with rows to clean."""
        tables = ((file, _read(file)[0]) for file in self.files)
        counts = [(file, int(self._concerned(table).sum())) for file, table in tables if table is not None]
        return [Rows(file, n) for file, n in counts if n]

    def clean(self, path: Path, drop: bool, today: str) -> int:
        """Blank or drop the rows of one file, with a line in its manifest; the file changes in one step.

        Returns
        -------
        int
            Rows that were changed.
        """
        table, noted = _read(path)
        if table is None or not (rows := self._concerned(table)).any():
            return 0
        n = int(rows.sum())
        if drop:
            table, what = table[~rows].reset_index(drop=True), "rows deleted"
        else:
            for name in self._columns(table):
                table[name] = table[name].mask(rows)
            if {"status", "status_reason"} <= set(table):
                said = table["status_reason"].astype(object)
                table["status_reason"] = said.mask(rows & (table["status"] == "ok"), FORGOTTEN).astype("str")
            what = "rows whose texts were blanked; scores and numbers kept"
        line = f"{n} {what}: their memory lists held a memory that was forgotten on {today}"
        facts = _manifest_says(path)
        if facts:
            before = list(facts.get("exclusions", []))
            if "file_sha256" in facts and facts["file_sha256"] is None:  # of a time that was cut short
                before = before[:-1]
            facts |= {"exclusions": [*before, line], "rows": len(table), "entries": int(table["entry_id"].nunique())}
            if drop and set(NAMES) <= set(table) and len(table):
                facts |= {"completeness": completeness(table).facts(), "missing_by_arm": missing_by_arm(table)}
            # Without a digest meanwhile: killed here, the next time finds rows to clean and writes both again.
            _write_manifest(path, facts | {"file_sha256": None})
        table.attrs = noted  # parquet keeps them
        digest = _replace(path, lambda file: _write(table, file, path.suffix))
        if facts:
            _write_manifest(path, facts | {"file_sha256": digest})
        return n

    def _by_key(self, table: pd.DataFrame) -> pd.Series:
        found = pd.Series(False, table.index)
        for name in (name for name in _KEYS if name in table):
            # A sorting of several calls has several keys, separated by blanks.
            found |= table[name].map(lambda said: bool(self.keys & set(str(said).split())), na_action="ignore").eq(True)
        return found

    def _concerned(self, table: pd.DataFrame) -> pd.Series:
        """Rows made with the memory (or, with `parts`, that hold its words) in which a text is left."""
        columns = self._columns(table)
        rows = self._by_key(table) | table["entry_id"].isin(self.entry_ids)
        if self.parts:
            for name in columns:
                rows |= table[name].map(lambda text: self.trace.within(str(text)), na_action="ignore").eq(True)
        return rows & table[columns].notna().any(axis=1)

    def _columns(self, table: pd.DataFrame) -> list[str]:
        """Columns to blank: the known ones, and others in which the memory's words stand."""
        others = [name for name in table if name not in NAMES and table[name].dtype == "str"]
        return [name for name in TEXTS if name in table] + [
            name for name in others if table[name].map(self.trace.within, na_action="ignore").eq(True).any()
        ]


def _read(path: Path) -> tuple[pd.DataFrame | None, dict]:
    """The table of a results file, and what it notes of its run; None for what is no such table."""
    try:
        table = _read_file(path)
    except InputError:
        return None, {}
    noted, table.attrs = table.attrs, {}  # pandas copies them to their depths at every step
    return (table if {"entry_id", "status"} <= set(table) else None), noted


def is_results(path: Path) -> bool:
    """Whether a file is a results table."""
    return _read(path)[0] is not None


def _write(table: pd.DataFrame, file: str, suffix: str) -> None:
    if suffix == ".parquet":
        table.to_parquet(file, index=False)
    else:
        # All quoted: a lone carriage return ends a line unless it is.
        table.to_csv(file, index=False, quoting=1, lineterminator="\n")


def _write_manifest(path: Path, facts: dict) -> None:
    text = json.dumps(facts, indent=1, ensure_ascii=False, sort_keys=True, default=str) + "\n"
    _replace(_manifest_of(path), lambda file: Path(file).write_text(text, encoding="utf-8"))
