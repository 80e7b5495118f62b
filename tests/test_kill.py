"""Killed at any moment, a run loses at most the calls in flight and repeats none that was finished."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

from structmem.store import Store

AT_ONCE, KILLS = 8, 3
# A small run of answers and verdicts, each by a Python function that takes some 30 ms and notes what it was asked.
RUN = """
import asyncio, json, os, random, sys
import structmem as sm
from structmem.calls import request_key

store, judge, log, at_once = sys.argv[1:]
log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

def replying(model_id, text):
    async def reply(messages, request):
        os.write(log, (request_key(request) + "\\n").encode())
        await asyncio.sleep(random.uniform(0.01, 0.05))
        return text
    reply.model_id = model_id
    return reply

entries = [
    sm.Entry(f"e-{n}", (sm.Memory("1", "Runs."), sm.Memory("2", f"Owns {n} cats.")), f"What is {n}?", "cross_domain")
    for n in range(16)
]
results = sm.run(
    entries, [replying("slow-answers", "An answer.")], ["flat"], generations=2, judge=judge, progress=False,
    judge_model=replying("slow-verdicts", '{"s": 2, "reasoning": "Seen."}'), store=store, max_concurrency=int(at_once),
)
print(json.dumps(results[["status", "score"]].value_counts().reset_index().values.tolist()))
"""
JUDGE = "{name: own, system: Rate., scale: [1, 5], score_field: s, high_is_bad: true, threshold: 3}"


def asked(log: Path) -> list[str]:
    return log.read_text(encoding="utf-8").split("\n")[:-1] if log.exists() else []


def test_kills_lose_only_calls_in_flight(tmp_path):
    store, judge, log, draw = tmp_path / "store.sqlite", tmp_path / "judge.yaml", tmp_path / "log", random.Random(5)
    judge.write_text(JUDGE, encoding="utf-8")
    command = [sys.executable, "-c", RUN, *map(str, (store, judge, log, AT_ONCE))]
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(__file__))}
    finished: set[str] = set()
    for kill in range(KILLS + 1):
        before = len(asked(log))
        enough, until = before + draw.randint(1, 30), time.monotonic() + 60
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        while kill < KILLS and child.poll() is None and len(asked(log)) < enough and time.monotonic() < until:
            time.sleep(0.002)
        if kill < KILLS:
            assert child.poll() is None, "the run ended before it was killed"
            child.kill()
        said = child.communicate(timeout=60)[0]
        new = set(asked(log)[before:])
        assert not finished & new, "a finished call was made again"
        with Store(store, read_only=True) as opened:
            finished = set(opened.get_many(asked(log)))
            assert not opened.failures()
        assert len(new - finished) <= 2 * AT_ONCE  # answers, and as many verdicts
    assert json.loads(said) == [["ok", 2, 64]]
    assert len(finished) == len(set(asked(log)))
