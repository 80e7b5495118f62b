"""How fast and how well memories are sorted: all PersistBench entries, every structure; exit status 1 below the bars.

python benchmarks/structuring.py                                          # the offline structurer
python benchmarks/structuring.py --structurer local/smollm2 --limit 20    # a model as classifier, hit rate only
python benchmarks/structuring.py --wall quiet    # p50 and p95 to sort 10, 100, 1,000 memories and to add one, recorded
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

import structmem as sm
from structmem import embedders
from structmem.background import run_sync
from structmem.paths import recorded
from structmem.quality import hit_rate
from structmem.timing import RECORDED, record_wall_times, wall_times
from structmem.tree import UNCLASSIFIED

BAR_S = 2.0  # for `fixed` over all entries, after import
TIMED = ("flat", "fixed", "dynamic", "tree", "rag")


async def _sorted(entries: list, name: str, structurer: str, options: dict) -> list:
    each = (sm.astructure(entry.memories, name, structurer=structurer, **options) for entry in entries)
    return await asyncio.gather(*each)


def _seconds(name: str, entries: list) -> float:
    embedders.KNOWN.clear()
    start = time.perf_counter()
    for entry in entries:
        sm.structure(entry.memories, name, query=entry.query)
    return time.perf_counter() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--structurer", default="embedding", help="who sorts: 'embedding' or a model id")
    parser.add_argument("--limit", type=int, default=0, help="entries per failure type; 0 takes all")
    parser.add_argument("--per-memory", action="store_true", help="one call per memory (models only)")
    parser.add_argument("--json-schema", action="store_true", help="send a JSON schema (local models get one anyway)")
    parser.add_argument("--wall", metavar="MACHINE", help="record wall times; say 'quiet' or 'busy', as the machine is")
    parser.add_argument("--repeats", type=int, default=20, help="measurements per wall time")
    arguments = parser.parse_args()
    if arguments.wall:
        table = wall_times(True, repeats=arguments.repeats, machine=arguments.wall)
        record_wall_times(recorded() / RECORDED, table)
        print(table.to_string(index=False, float_format="{:.3g}".format))
        return 0
    entries = sm.load_entries("persistbench", limit=arguments.limit)
    taxonomy = sm.load_taxonomy()
    if arguments.structurer == "embedding":
        sm.structure(["warm up"], "dynamic")
        slow = False
        memories = sum(len(entry.memories) for entry in entries)
        print(f"{len(entries)} entries, {memories} memories, each embedded anew; best of 3")
        for name in TIMED:
            taken = min(_seconds(name, entries) for _ in range(3))
            slow |= name == "fixed" and taken > BAR_S
            print(f"{name:<10}{taken:>9.2f} s")
        names, options = ("fixed", "dynamic"), {}
    else:
        entries = [entry for entry in entries if entry.memory_domain]
        slow, names = False, ("fixed",)
        options = {"per_memory": arguments.per_memory, "json_schema": arguments.json_schema or None}
    labelled = [entry for entry in entries if entry.memory_domain]
    for name in names:
        nodes = run_sync(_sorted(labelled, name, arguments.structurer, options))
        lost = sum(len(child.memories) for node in nodes for child in node.children if child.label == UNCLASSIFIED)
        total = sum(len(entry.memories) for entry in labelled)
        print(f"\n{name} ({arguments.structurer}), {len(labelled)} labelled entries, unclassified {lost} of {total}")
        print(hit_rate(nodes, labelled, taxonomy).round(3).to_string(index=False))
    if slow:
        print(f"\n'fixed' took more than {BAR_S} s.", file=sys.stderr)
    return int(slow)


if __name__ == "__main__":
    raise SystemExit(main())
