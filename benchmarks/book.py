"""How long `MemoryBook.context` takes with 10, 100 and 1,000 memories: unchanged, after one addition, sorted anew.

    python benchmarks/book.py

The memories are the first different texts of PersistBench, sorted by the embedding structurer. There is no bar: the
last column says how many times as long as an unchanged context with 10 memories, which depends less on the machine.
"""

from __future__ import annotations

import time
from itertools import islice

import numpy as np

import structmem as sm
from structmem import MemoryBook

SIZES, STRUCTURES, REPEATS = (10, 100, 1000), ("fixed", "dynamic", "tree"), 30
PATIENCE_S = 600.0


def seconds(task) -> float:
    """Wall time of one call."""
    began = time.perf_counter()
    task()
    return time.perf_counter() - began


def main() -> int:
    """Print the table."""
    texts = list(dict.fromkeys(m.text for entry in sm.load_entries("persistbench") for m in entry.memories))
    sm.structure(texts[:2], "tree")  # loads the embedder
    base = None
    print(f"{'structure':<10}{'memories':>9}  {'task':<16}{'p50':>10}{'p95':>10}{'times':>9}")
    for name in STRUCTURES:
        for size in SIZES:
            book, spare = MemoryBook(texts[:size], name, deadline_s=PATIENCE_S), iter(texts[size:])
            book.context()
            same = [seconds(book.context) for _ in range(REPEATS)]
            added = []
            for text in islice(spare, min(REPEATS, size)):  # fewer than would have all sorted anew
                book.add_memory(text, deadline_s=0)
                added.append(seconds(book.context))
            anew = []
            for _ in range(5):
                book.resort()
                anew.append(seconds(book.context))
            for task, times in (("unchanged", same), ("after one more", added), ("all anew", anew)):
                p50, p95 = np.quantile(times, [0.5, 0.95]) * 1000
                base = base or p50
                print(f"{name:<10}{size:>9}  {task:<16}{p50:>7.3f} ms{p95:>7.3f} ms{p50 / base:>9.0f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
