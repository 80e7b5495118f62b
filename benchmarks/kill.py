"""A run that is killed (kill -9) at random moments and resumed each time: what is asked twice, and what is lost.

    python benchmarks/kill.py                         # 20 kills, some 4 minutes
    python benchmarks/kill.py --kills 5 --seed 3 --concurrency 64

The run is PersistBench's `cross_domain` and `sycophancy` entries under four structures, one answer and one verdict
each, in a process of its own against a server in this one, which notes every request and whether its answer was sent.
Each reply names the request that it answers, so that the store of a killed run tells what was finished. Exit status 1
if a finished call was asked for again, a kill lost more calls than may be open at once, or the table is not whole.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from hashlib import blake2b
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # structmem of this checkout

from mock_server import Connection, Server, Settings

LONGEST_S = 600  # for one start of the run
NAMES = re.compile(r"\[([0-9a-f]{8})-\d+\]|Seen ([0-9a-f]{32})\.")  # how the mock server's replies name their request


class Log:
    """What the server was asked and what it answered, by the first 8 digits of a digest of the body."""

    def __init__(self):
        self.asked, self.answered = Counter(), Counter()


class Noted(Connection):
    """A connection that keeps the log."""

    def complete(self, body: bytes) -> None:
        self.name = blake2b(body, digest_size=16).hexdigest()[:8]
        self.server.log.asked[self.name] += 1
        super().complete(body)

    def answer(self, *details) -> None:
        self.server.log.answered[self.name] += 1
        super().answer(*details)


class Listening:
    """The server, in a thread of this process."""

    def __init__(self, latency_s: float):
        self.server = Server(Settings(latency_s=latency_s))
        self.log = self.server.log = Log()
        self._loop = asyncio.new_event_loop()
        self.server.loop = self._loop

    def __enter__(self) -> Listening:
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        made = self._loop.create_server(lambda: Noted(self.server), "127.0.0.1", 0, backlog=1024)
        listening = asyncio.run_coroutine_threadsafe(made, self._loop).result(10)
        self.base_url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1"
        return self

    def __exit__(self, *_) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)


def run(store: Path, base_url: str, entries: int, concurrency: int) -> dict:
    """The run itself, in the process that is killed."""
    import structmem as sm

    address = {"api_base": base_url}
    table = sm.run(
        sm.load_entries("persistbench", ["cross_domain", "sycophancy"], limit=entries), "hosted_vllm/answers",
        aa=False, generations=1, judge="persistbench", judge_model="hosted_vllm/judge", model_options=address,
        judge_options=address, store=store, max_concurrency=concurrency, progress=False,
    )  # fmt: skip
    return {
        "rows": len(table),
        "scored": int(table["score"].notna().sum()),
        "status": table["status"].value_counts().to_dict(),
    }


def finished(store: Path) -> set[str]:
    """Which requests the store holds finished replies to, from what the replies say."""
    from structmem.store import Store

    with tempfile.TemporaryDirectory() as folder, Store(store, read_only=True) as opened:
        opened.export(Path(folder) / "calls.jsonl", failures=False)
        lines = (Path(folder) / "calls.jsonl").read_text(encoding="utf-8").splitlines()
    calls = [json.loads(line) for line in lines]
    found = (NAMES.search(call["text"]) for call in calls if call["role"] in ("answer", "judge"))
    return {(name[1] or name[2])[:8] for name in found}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="another one kills at other moments")
    parser.add_argument("--entries", type=int, default=0, help="per failure type; 0 takes all 200")
    parser.add_argument("--concurrency", type=int, default=16, help="answers at once, and as many judgements")
    parser.add_argument("--latency-s", type=float, default=0.05)
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        print(json.dumps(run(Path(given.run[0]), given.run[1], given.entries, given.concurrency)))
        return 0
    with tempfile.TemporaryDirectory() as folder, Listening(given.latency_s) as server:
        tally, table = killed_often(given, Path(folder) / "store.sqlite", server)
    seen, distinct, most = server.log.asked.total(), len(server.log.asked), 2 * given.concurrency
    print(f"killed                        {tally['kills']} times")
    print(f"requests                      {seen:,} seen, {distinct:,} distinct, {seen - distinct:,} repeated")
    print(f"repeated, though answered     {tally['answered']}   answered before the kill, and not yet stored")
    print(f"repeated, though finished     {tally['finished']}   bar 0")
    print(f"most lost by one kill         {tally['most lost']}   bar {most}, the calls that may be open at once")
    print(f"finished at the end           {tally['kept']:,} of {distinct:,}")
    print(f"table                         {table['rows']} rows, {table['scored']} scored, status {table['status']}")
    whole = tally["kept"] == distinct and table["scored"] == table["rows"] == 8 * (given.entries or 200)
    return int(tally["finished"] > 0 or tally["most lost"] > most or not whole)


def killed_often(given: argparse.Namespace, store: Path, server: Listening) -> tuple[Counter, dict]:
    """Start the run, kill it and start it again; what was counted, and what the last start says of its table."""
    draw, log, known, answered, tally = random.Random(given.seed), server.log, set(), set(), Counter()
    calls = 11 * (given.entries or 200)  # about: 2 types x 4 structures x 2, less what is equal in several structures
    command = [
        sys.executable, "-W", "ignore", __file__, "--run", str(store), server.base_url, "--entries", str(given.entries),
        "--concurrency", str(given.concurrency),
    ]  # fmt: skip
    print("kill  requests  repeated  of finished  finished   lost  of answered", flush=True)
    for start in range(given.kills + 1):
        before, last = Counter(log.asked), start == given.kills
        # Any moment up to where this start should get to, if all are to get about as far.
        share = 2 * max(1, calls - len(known)) // (given.kills - start + 1)
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        enough, until = before.total() + draw.randint(1, max(1, share)), time.monotonic() + LONGEST_S
        while child.poll() is None and time.monotonic() < until and (last or log.asked.total() < enough):
            time.sleep(0.002)
        if child.poll() is None:
            time.sleep(draw.random() * given.latency_s)
            child.kill()
            tally["kills"] += 1
        earlier, answered = answered, set(log.answered)  # whose answers were sent before the last kill, and before this
        said = child.communicate()[0]
        new = log.asked - before
        again = {name for name in new if before[name]}
        of_finished, known = again & known, finished(store) if store.exists() else set()
        lost = set(new) - known
        tally["finished"] += len(of_finished)
        tally["answered"] += len(again & earlier)
        tally["most lost"] = max(tally["most lost"], len(lost))
        print(
            f"{'-' if last else start + 1:>4} {new.total():>9} {len(again):>9} {len(of_finished):>12} "
            f"{len(known):>9} {len(lost):>6} {len(lost & answered):>12}",
            flush=True,
        )
    tally["kept"] = len(known)
    return tally, json.loads(said.splitlines()[-1])


if __name__ == "__main__":
    raise SystemExit(main())
