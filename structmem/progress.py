"""Progress of a run: one line on standard error."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Mapping


class Progress:
    """One line on standard error: rewritten in a terminal, a new line every 10 s elsewhere, nothing for short runs.

    Parameters
    ----------
    total : int
        Rows to make.
    calls : mapping, optional
        The client's running counts, of which ``made`` and ``retries`` are shown.
    """

    def __init__(self, total: int, calls: Mapping | None = None) -> None:
        self.total, self.counts, self._calls = total, Counter(), calls or {}
        self._terminal = sys.stderr.isatty()
        self._every = 0.2 if self._terminal else 10.0
        self._last = time.monotonic()
        self._shown = False

    def step(self, status: str) -> None:
        self.counts[status] += 1
        if time.monotonic() - self._last >= self._every:
            self._show()

    def end(self) -> None:
        if self._shown:
            self._show()
            if self._terminal:
                sys.stderr.write("\n")

    def _show(self) -> None:
        self._last, self._shown = time.monotonic(), True
        other = ", ".join(f"{count} {status}" for status, count in sorted(self.counts.items()) if status != "ok")
        by_role = self._calls.get("by_role", {})  # what functions sort here is no call
        made = sum(counts["made"] for role, counts in by_role.items() if role != "structurer")
        counted = {"made": made, "retries": self._calls.get("retries")}
        calls = ", ".join(f"{count} {name}" for name, count in counted.items() if count)
        parts = [f"{self.counts.total()}/{self.total} rows", other, calls and f"calls: {calls}"]
        text = f"structmem: {', '.join(part for part in parts if part)}"
        sys.stderr.write(f"\r{text}\033[K" if self._terminal else f"{text}\n")
        sys.stderr.flush()
