"""A run against a server that throttles, fails, hangs and answers badly; exit status 1 if a row is lost or not counted.

    python benchmarks/faults.py                     # 10 % 429, 5 % 500, 3 % hangs, 5 % bad verdicts, 2 % empty answers
    python benchmarks/faults.py --seed 3 --hang 0.1

PersistBench's 200 cross-domain entries under `flat`, 3 answers each, and a verdict on each, with the client's own
settings but a short timeout. Every fault passes when the same request is sent again, so nothing may be lost: each
row must hold a score. No answer may be generated again because of its verdict, and no unreadable verdict be used.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # structmem of this checkout

from mock_server import Mock

import structmem as sm
from structmem.llm import Client
from structmem.transport import load_litellm

SHARES = {"rate_limited": 0.10, "server_error": 0.05, "hang": 0.03, "malformed": 0.05, "empty": 0.02}


def one_run(entries: list, base_url: str, store: Path, timeout_s: float, concurrency: int):
    """The results of one run, the client's counts and the seconds it took."""
    with Client(store, max_concurrency=concurrency, timeout_s=timeout_s) as client:
        began = time.monotonic()
        results = sm.run(
            entries, "hosted_vllm/answers", "flat", aa=False, system_prompt="persistbench", judge="persistbench",
            judge_model="hosted_vllm/judge", model_options={"api_base": base_url}, judge_options={"api_base": base_url},
            client=client, max_concurrency=concurrency, progress=False,
        )  # fmt: skip
        return results, dict(client.counts), time.monotonic() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, share in SHARES.items():
        parser.add_argument("--" + name.replace("_", "-"), type=float, default=share, help="share in 0..1")
    parser.add_argument("--seed", type=int, default=0, help="another one hits other requests")
    parser.add_argument("--entries", type=int, default=0, help="0 takes all 200")
    parser.add_argument("--timeout-s", type=float, default=2)
    parser.add_argument("--concurrency", type=int, default=32)
    given = parser.parse_args()
    faults = {name: getattr(given, name) for name in SHARES}
    entries = sm.load_entries("persistbench", ["cross_domain"], limit=given.entries)
    asked = 3 * len(entries)
    load_litellm()
    with tempfile.TemporaryDirectory() as folder, Mock(seed=given.seed, **faults) as mock:
        store = Path(folder) / "store.sqlite"
        results, counts, took = one_run(entries, mock.base_url, store, given.timeout_s, given.concurrency)
        seen = mock.stats()
        mock.reset(**dict.fromkeys(SHARES, 0.0))
        again, _, took_again = one_run(entries, mock.base_url, store, given.timeout_s, given.concurrency)
        later = mock.stats()["requests"]
    scored = results["score"].notna() & (results["status"] == "ok")
    missing = results[~scored].groupby(["status", "status_reason"], dropna=False).size()
    hit, planned = seen["faults"], ", ".join(f"{name} {share:.0%}" for name, share in faults.items())
    answers = seen["replies"].get("answer", 0) - hit.get("empty", 0)
    verdicts = seen["replies"].get("judge", 0) - hit.get("malformed", 0)
    print(f"planned faults: {planned}; seed {given.seed}")
    print(f"faults served: {', '.join(f'{name} {count}' for name, count in sorted(hit.items()))}")
    print(f"rows asked {asked}, in the table {len(results)}, scored {scored.sum()}")
    print("missing: " + (", ".join(f"{' '.join(map(str, why))} {n}" for why, n in missing.items()) or "none"))
    print(f"calls made {counts['made']}, retries {counts['retries']}, verdicts rejected {counts['rejected']}")
    print(f"requests seen by the server: {', '.join(f'{kind} {count}' for kind, count in seen['requests'].items())}")
    print(f"usable replies served: answers {answers}, verdicts {verdicts}")
    print(f"wall time {took:.1f} s with {given.concurrency} calls of each kind at once, timeout {given.timeout_s:g} s")
    print(
        f"run again without faults: {sum(later.values())} requests, {took_again:.1f} s, {again['score'].count()} scored"
    )
    wrong = []
    if len(results) != asked or missing.sum() + scored.sum() != asked:
        wrong.append("a row is not counted")
    if missing.sum():
        wrong.append(f"{missing.sum()} rows are lost, and a retry could have saved each of them")
    if answers > asked:
        wrong.append(f"{answers - asked} usable answers were asked for a second time")
    if verdicts != scored.sum():
        wrong.append(f"{scored.sum()} scores from {verdicts} readable verdicts")
    if again["score"].count() != asked or sum(later.values()) > 2 * missing.sum():
        wrong.append("running again did not make just what was missing")
    for sentence in wrong:
        print(f"WRONG: {sentence}.", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main())
