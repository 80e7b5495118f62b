"""Progress of a run: one line on standard error."""

from __future__ import annotations

import sys
import time
from collections import Counter


class Progress:
    """One line on standard error: rewritten in a terminal, a new line every 10 s elsewhere, nothing for short runs."""

    def __init__(self, total: int) -> None:
        self.total, self.counts = total, Counter()
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
        text = f"structmem: {self.counts.total()}/{self.total} rows{', ' + other if other else ''}"
        sys.stderr.write(f"\r{text}\033[K" if self._terminal else f"{text}\n")
        sys.stderr.flush()
