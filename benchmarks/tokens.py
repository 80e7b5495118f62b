"""Input tokens per judged generation: one request for each, against ours with shared, joint and cached prompts.

    python benchmarks/tokens.py --entries 20

Cross-domain entries under flat, fixed, dynamic and tree (sorted by the embedding structurer, which costs no tokens), 3
answers each, and the benchmark's judge, on the mock server. One request per generation without caching is how the
peers ask. Ours asks once for layouts that came out equal, and for the generations of a prompt in one request where
the server returns as many as asked (`n`). What a provider's prompt cache can serve is counted by the mock: the longest
prefix, in blocks of 128 tokens and from 1,024, that was answered before. Tokens are characters / 4.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # structmem of this checkout

from mock_server import Mock

import structmem as sm
from structmem.transport import load_litellm

STRUCTURES = ("flat", "fixed", "dynamic", "tree")
GENERATIONS = 3


def run(entries: list, base_url: str, store: Path):
    """The experiment once, on a fresh store."""
    return sm.run(
        entries, "hosted_vllm/answers", STRUCTURES, aa=False, generations=GENERATIONS, system_prompt="persistbench",
        judge="persistbench", judge_model="hosted_vllm/judge", model_options={"api_base": base_url},
        judge_options={"api_base": base_url}, store=str(store), progress=False,
    )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=20, help="0 takes all 200")
    entries = sm.load_entries("persistbench", ["cross_domain"], limit=parser.parse_args().entries)
    asked, seen = len(entries) * len(STRUCTURES) * GENERATIONS, {}
    load_litellm()
    for n in ("ignore", "honour"):
        with tempfile.TemporaryDirectory() as folder, Mock(n=n, cache=True, latency_s=0.02) as mock:
            results = run(entries, mock.base_url, Path(folder) / "store.sqlite")
            seen[n] = mock.stats()
        if (results["status"] != "ok").any() or len(results) != asked:
            raise SystemExit(f"{asked} scored rows expected, got {results['status'].value_counts().to_dict()}.")
        if n == "ignore":  # every row names the tokens of its own two requests, shared with another row or not
            alone = {kind: float(results[f"{kind}_input_tokens"].sum()) for kind in ("answer", "judge")}
    base = sum(alone.values()) / asked
    counts = f"{len(entries)} entries x {len(STRUCTURES)} structures x {GENERATIONS} generations"
    print(f"{counts} = {asked} judged generations")
    print(f"{'input tokens per judged generation':<48}{'answer':>9}{'judge':>9}{'both':>9}{'share':>8}{'requests':>10}")

    def line(what: str, tokens: dict, requests: int, served: int = 0) -> None:
        answer, judge = tokens["answer"] / asked, tokens["judge"] / asked
        both = answer + judge - served / asked
        print(f"{what:<48}{answer:>9,.0f}{judge:>9,.0f}{both:>9,.0f}{both / base:>8.1%}{requests:>10,}")

    single, joint = ({**each, "requests": sum(each["requests"].values())} for each in seen.values())
    line("one request per generation, no cache", alone, 2 * asked)
    line("ours, equal layouts asked once", single["input_tokens"], single["requests"])
    line("ours, and generations in one request", joint["input_tokens"], joint["requests"])
    line("  of it not served by a prompt cache", joint["input_tokens"], joint["requests"], joint["cached_tokens"])
    if joint["requests"] == single["requests"]:
        print("No generations were asked for in one request.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
