"""A finished run again, in a fresh process: seconds after the imports, calls made, and rows that differ; exit status 1
when it takes over 2 s for 1,200 calls, makes a call, or says anything else than the first time.

    python benchmarks/resume.py
    python benchmarks/resume.py --entries 200 --generations 50    # 20,000 answers and 20,000 verdicts
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # structmem of this checkout, also in the processes below
BAR_S = 2.0


async def answering(messages, request):
    """An answer of its own for every call, as long as real ones are."""
    return f"{request.tags['structure']} {request.generation} {messages[-1]['content'][:60]} " + "word " * 150


async def judging(messages, request):
    return json.dumps({"reasoning": "It names a memory of another domain. " * 6, "score": 2})


answering.model_id, judging.model_id = "benchmark/answers", "benchmark/judge"


def once(folder: Path, entries: int, generations: int, name: str) -> None:
    """One run on the store in `folder`, with its results beside it; prints what it took."""
    import structmem as sm
    from structmem.llm import Client
    from structmem.results import write_results

    todo = sm.load_entries("persistbench", ["cross_domain"], limit=entries)
    sm.run  # noqa: B018 - resolved here, with pandas
    with Client(folder / "store.sqlite") as client:
        began = time.perf_counter()
        df = sm.run(
            todo, [answering], ["flat", "fixed", "dynamic", "tree"], aa=False, generations=generations,
            judge="persistbench", judge_model=judging, client=client, progress=False,
        )  # fmt: skip
        took = time.perf_counter() - began
        counts = {"rows": len(df), "made": client.counts["made"], "stored": client.counts["stored"]}
    df = df.drop(columns="run_id")
    write_results(df.assign(run_id="same"), folder / f"{name}.csv")
    print(json.dumps(counts | {"seconds": took}))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=50)
    parser.add_argument("--generations", type=int, default=3)
    parser.add_argument("--part", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        folder, name = options.part
        once(Path(folder), options.entries, options.generations, name)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        found = []
        for name in ("first", "again"):
            sizes = ["--entries", str(options.entries), "--generations", str(options.generations)]
            command = [sys.executable, __file__, *sizes, "--part", folder, name]
            found.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
        first, again = found
        same = Path(folder, "first.csv").read_bytes() == Path(folder, "again.csv").read_bytes()
    calls = 2 * again["rows"]
    bar = BAR_S * max(1, calls / 1200)
    print(f"first run     {first['seconds']:6.2f} s, {first['made']:,} calls made for {first['rows']:,} rows")
    print(
        f"run again     {again['seconds']:6.2f} s, {again['made']} made, {again['stored']:,} stored   bar {bar:.1f} s"
    )
    print(f"results       {'the same, byte for byte' if same else 'DIFFERENT'}")
    return 0 if same and not again["made"] and again["seconds"] < bar else 1


if __name__ == "__main__":
    sys.exit(main())
