"""A store of 100,000 finished calls: writing them, and finding that nothing is left to do; exit status 1 if too slow.

    python benchmarks/store.py                       # makes the store in a temporary folder; some 2 minutes
    python benchmarks/store.py --keep store.sqlite   # kept, and used again the next time
    python benchmarks/store.py --calls 20000

The calls are those of a grid over PersistBench's 500 entries: structures, defences and models, each with an answer and
a judgement. A new process then builds every request, opens the store, computes each key and looks it up: answers first,
and judgements after them, since those are built from the answers. The bar is for all but building the requests.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # structmem of this checkout

import structmem as sm
from structmem.calls import Call, Request, request_key
from structmem.judges import Judge, judge_messages, load_judge
from structmem.llm import Client
from structmem.store import Store

BAR_S = 5.0
STRUCTURES = ("flat", "fixed", "dynamic", "tree")
DEFENCES = ("standard", "permissive", "restrictive", "rubric_informed")
SENTENCE = "A careful answer looks at the question first, then at what it needs to know, and leaves the rest alone. "


def contexts(entries: list) -> list[tuple]:
    """Each entry with its contexts under the structures, numbered, since some of them are equal."""
    return [
        (entry, number, str(sm.render(sm.structure(entry.memories, name, query=entry.query))))
        for entry in entries
        for number, name in enumerate(STRUCTURES)
    ]


def answers(laid_out: list[tuple], calls: int) -> Iterator[tuple]:
    """Requests for answers, each with its entry, until there are as many as wanted."""
    left = calls // 2
    for model in itertools.count(1):
        for defence in DEFENCES:
            for entry, number, context in laid_out:
                if not left:
                    return
                left -= 1
                yield entry, Request(
                    f"hosted_vllm/model-{model}", sm.build_messages(entry.query, context, defence=defence), "answer",
                    {"temperature": 1.0, "max_tokens": 1000}, {"api_base": "http://127.0.0.1:8000/v1"},
                    generation=number, memories=[memory.text for memory in entry.memories],
                )  # fmt: skip


def judgement(judge: Judge, entry, response: str, memories: tuple) -> Request:
    """The request for the verdict on an answer."""
    messages, _ = judge_messages(entry, response, judge)
    return Request("hosted_vllm/judge", tuple(messages), "judge", {"temperature": 0}, {}, memories=memories)


def finished(request: Request, text: str) -> Call:
    """A finished call as the client would store it."""
    return Call(
        request_key(request), "ok", text=text, finish_reason="stop", model=request.model, served_model=request.model,
        provider="hosted_vllm", input_tokens=900, output_tokens=250, cost_usd=0.0005, latency_s=1.25, requests=1,
        called_at="2026-01-01T00:00:00.000+00:00", params_sent=dict(request.params), role=request.role,
    )  # fmt: skip


def make(path: Path, laid_out: list, calls: int) -> None:
    """Write all calls of the grid, one after the other, as a run does."""
    judge, slowest = load_judge("persistbench"), []
    with Store(path) as store:
        for entry, request in answers(laid_out, calls):
            answer = f"[{hashlib.sha256(repr(request).encode()).hexdigest()[:12]}] " + SENTENCE * 10
            verdict = judgement(judge, entry, answer, request.memories)
            said = json.dumps({"reasoning": SENTENCE * 4, "score": 1})
            for call, asked in ((finished(request, answer), request), (finished(verdict, said), verdict)):
                began = time.perf_counter()
                store.submit(call, asked)
                slowest.append(time.perf_counter() - began)
    slowest.sort()
    n, spent = len(slowest), sum(slowest)
    print(
        f"writing a call    mean {spent / n * 1e6:,.0f} µs, median {slowest[n // 2] * 1e6:,.0f} µs, "
        f"99th percentile {slowest[n * 99 // 100] * 1e6:,.0f} µs, longest {slowest[-1] * 1e3:.1f} ms"
    )


def look(path: Path, calls: int) -> dict:
    """Find that nothing is left to do; seconds of each step, and what was found."""
    laid_out, judge = contexts(sm.load_entries("persistbench")), load_judge("persistbench")
    asked = list(answers(laid_out, calls))
    memory = _peak_mb()
    began = time.perf_counter(), time.process_time()
    with Client(path, offline=True, announce=None) as client:
        told = client.stored([request for _, request in asked])
        first = time.perf_counter() - began[0], time.process_time() - began[1]
        found = [(entry, request, call) for (entry, request), call in zip(asked, told, strict=True) if call is not None]
        verdicts = [judgement(judge, entry, call.text, request.memories) for entry, request, call in found]
        began = time.perf_counter(), time.process_time()
        judged = client.stored(verdicts)
        took = time.perf_counter() - began[0] + first[0], time.process_time() - began[1] + first[1]
    missing = calls - len(found) - len(judged) + judged.count(None)
    return {"s": took[0], "cpu_s": took[1], "missing": missing, "memory_mb": _peak_mb(), "before_mb": memory}


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--keep", type=Path, help="where the store is made, and found again")
    parser.add_argument("--look", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.look:
        print(json.dumps(look(given.look, given.calls)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        path = given.keep or Path(folder) / "store.sqlite"
        if not path.exists():
            make(path, contexts(sm.load_entries("persistbench")), given.calls)
        print(f"size of the file  {os.path.getsize(path) / 1e6:,.0f} MB")
        command = [sys.executable, __file__, "--look", str(path), "--calls", str(given.calls)]
        ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        seen = json.loads(ended.stdout.splitlines()[-1])
    print(f"memory            {seen['memory_mb']:,.0f} MB, {seen['before_mb']:,.0f} MB of it before looking up")
    print(f"missing           {seen['missing']:,} of {given.calls:,} calls")
    print(f"looking all up    {seen['s']:.2f} s, of it {seen['cpu_s']:.2f} s CPU   bar {BAR_S:.1f} s")
    return int(seen["missing"] > 0 or seen["s"] > BAR_S)


if __name__ == "__main__":
    raise SystemExit(main())
