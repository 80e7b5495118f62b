"""The whole job of structmem, bare litellm and Inspect AI in turn on one mock server; exit status 1 below the bars.

    python benchmarks/throughput.py --inspect-python PATH          # a Python with inspect-ai, inspect-evals and openai
    python benchmarks/throughput.py --settings 50/64 --runs 1      # milliseconds of latency / calls open at once

The job: PersistBench's 200 cross-domain entries, 3 answers each and a verdict on each (1,200 calls; 4,800 at 1000/256),
the benchmark's own prompts for both. structmem also sorts the memories with the embedding structurer (`fixed`), stores
every call on disk and writes the results table. Bare litellm sends the same messages and keeps nothing. Inspect AI runs
its own PersistBench task, whose prompt is flat, with its slow options off. README.md says how to read the table.
Exit status: 0 all bars met, 1 a bar missed, 3 a bar could not be checked because Inspect AI is not there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))  # structmem of this checkout, also in the processes below

ANSWERS, JUDGE = "hosted_vllm/answers", "hosted_vllm/judge"
GENERATIONS = {"1000/256": 12}  # elsewhere the benchmark's own 3
LATE_S = 900  # a job that takes longer is stopped
OFF = ("--display", "none", "--no-log-realtime", "--no-score-display", "--log-buffer", "1000", "--ctl-server", "false")
INSPECT_IMPORT = "import inspect_ai, inspect_ai._cli.main, inspect_evals.persistbench.persistbench, openai"


# -- the jobs, each in a process of its own ----------------------------------------------------------------------------


def ours(job: dict) -> dict:
    """`structmem.run` on a fresh store on disk, and its results table on disk."""
    import structmem as sm
    from structmem import transport
    from structmem.results import write_results

    transport.load_litellm()
    run = sm.run  # resolved here, with pandas
    imported = time.process_time()
    results = run(
        sm.load_entries("persistbench", ["cross_domain"], limit=job["entries"]),
        ANSWERS,
        job["structure"],
        aa=False,
        generations=job["generations"],
        system_prompt="persistbench",
        judge="persistbench",
        judge_model=JUDGE,
        model_options={"api_base": job["base_url"]},
        judge_options={"api_base": job["base_url"]},
        store=str(Path(job["folder"]) / "store.sqlite"),
        max_concurrency=job["concurrency"] // 2,  # answers and verdicts each have this limit
        progress=False,
    )
    write_results(results, Path(job["folder"]) / "results.parquet")
    missing = results[results["status"] != "ok"][["status", "status_reason", "status_detail"]]
    return {"import_cpu_s": imported, "done": len(results) - len(missing), "missing": missing.head(3).values.tolist()}


def litellm(job: dict) -> dict:
    """`litellm.acompletion` for each answer and then for its verdict, nothing read and nothing kept."""
    import litellm as lib

    lib.telemetry, lib.suppress_debug_info = False, True
    imported = time.process_time()
    pairs, system = json.loads(Path(job["messages"]).read_text(encoding="utf-8"))
    pairs, done = pairs * job["generations"], 0

    async def ask(model: str, messages: list, temperature: float) -> str:
        reply = await lib.acompletion(
            model=model, messages=messages, temperature=temperature, api_base=job["base_url"], num_retries=0,
            max_retries=0, timeout=120,
        )  # fmt: skip
        return reply.choices[0].message.content

    async def work(turns) -> None:
        nonlocal done
        for messages, before, after in turns:
            answer = await ask(ANSWERS, messages, 1.0)
            user = {"role": "user", "content": before + answer + after}
            verdict = await ask(JUDGE, [{"role": "system", "content": system}, user], 0.0)
            done += bool(verdict)

    async def everything() -> None:
        turns = iter(pairs)
        await asyncio.gather(*(work(turns) for _ in range(job["concurrency"])))

    asyncio.run(everything())
    return {"import_cpu_s": imported, "done": done}


def write_messages(job: dict, path: Path) -> None:
    """The messages of our job for bare litellm: those of each answer, and what surrounds the answer for the judge."""
    import structmem as sm
    from structmem.judges import judge_messages
    from structmem.messages import build_messages

    pairs, mark = [], "@@ANSWER@@"
    for entry in sm.load_entries("persistbench", ["cross_domain"], limit=job["entries"]):
        context = sm.render(sm.structure(entry.memories, job["structure"], query=entry.query), "markdown")
        messages = build_messages(entry.query, context, system_prompt="persistbench", model=ANSWERS)
        system, user = judge_messages(entry, mark)[0]
        pairs.append([messages, *user["content"].split(mark)])
    path.write_text(json.dumps([pairs, system["content"]]), encoding="utf-8")


# -- measuring ---------------------------------------------------------------------------------------------------------


def measured(command: list[str], folder: Path, env: dict | None = None) -> tuple[dict, float, float]:
    """Run a command; what it printed last as JSON (if it did), its CPU seconds and its peak memory in MB."""
    settings = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", **(env or {})}
    with (folder / "out.txt").open("w+") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=folder, env=os.environ | settings)
        until = time.monotonic() + LATE_S
        while True:
            found, status, usage = os.wait4(process.pid, os.WNOHANG)
            if found:
                break
            if time.monotonic() > until:
                process.kill()
            time.sleep(0.05)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        said = out.read()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)[:200]} ended with status {process.returncode}:\n{said[-2000:]}")
    last = said.strip().rpartition("\n")[2]
    return json.loads(last) if last.startswith("{") else {}, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def inspect_command(python: str, job: dict) -> tuple[list[str], dict]:
    """Inspect AI's own PersistBench task on the mock, tuned."""
    most = str(job["concurrency"])
    command = [
        python, "-m", "inspect_ai", "eval", "inspect_evals/persistbench_cross_domain", "--model",
        "openai-api/mock/answers", "--model-role", "grader=openai-api/mock/judge", "--max-connections", most,
        "--max-samples", most, "--epochs", str(job["generations"]), "--log-dir", job["folder"], *OFF,
    ]  # fmt: skip
    if job["entries"]:
        command += ["--limit", str(job["entries"])]
    return command, {"MOCK_BASE_URL": job["base_url"], "MOCK_API_KEY": "none"}


def one_run(name: str, job: dict, mock, python: str) -> dict:
    """One harness through the job once: what the server saw, and what the process cost."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        job = job | {"folder": place, "base_url": mock.base_url}
        if name == "inspect":
            command, env = inspect_command(python, job)
        else:
            path = folder / "job.json"
            path.write_text(json.dumps(job), encoding="utf-8")
            command, env = [sys.executable, str(Path(__file__).resolve()), "--job", name, str(path)], {}
        mock.reset(latency_s=job["latency_ms"] / 1000)
        before = mock.stats()["cpu_s"]
        said, cpu, rss = measured(command, folder, env)
        seen = mock.stats()
    calls, judged = sum(seen["replies"].values()), seen["replies"].get("judge", 0)
    expected = (job["entries"] or 200) * job["generations"]
    if (calls, judged) != (2 * expected, expected) or said.get("done", expected) != expected:
        raise SystemExit(f"{name} did not do the whole job: {expected} answers and verdicts expected, {seen}, {said}")
    if seen["most_open"] > job["concurrency"]:
        raise SystemExit(f"{name} had {seen['most_open']} calls open at once, {job['concurrency']} are allowed.")
    after = cpu - said.get("import_cpu_s", job["inspect_import_s"])
    return {
        "calls_per_s": seen["calls_per_s"], "cpu": cpu / calls * 1000, "cpu_after_import": after / calls * 1000,
        "rss": rss, "open": seen["most_open"], "mock_cpu": (seen["cpu_s"] - before) / calls * 1000,
    }  # fmt: skip


def bars(setting: str, ideal: float, found: dict) -> list[tuple[str, float, float, bool, bool | None]]:
    """Ratio, bar, whether it is required, and whether it is met (None: not measured)."""
    us, bare, peer = found["ours"], found.get("litellm"), found.get("inspect")
    rows = []

    def add(what: str, value: float | None, bar: float, required: bool = True, least: bool = True) -> None:
        met = None if value is None else value >= bar if least else value <= bar
        rows.append((what, value, bar, required, met))

    add("calls/s, ours : bare litellm, at least", bare and us["calls_per_s"] / bare["calls_per_s"], 0.9)
    # Where the server's latency alone sets the speed, nobody can be much faster than another.
    if peer is None or 1.7 * peer["calls_per_s"] < 0.88 * ideal:
        if setting != "1000/64":
            add("calls/s, ours : Inspect AI, at least", peer and us["calls_per_s"] / peer["calls_per_s"], 1.7)
            add("    stretch", peer and us["calls_per_s"] / peer["calls_per_s"], 2.0, required=False)
    add("CPU per call, ours : Inspect AI, at most", peer and us["cpu"] / peer["cpu"], 0.6, least=False)
    if setting == "1000/64":
        add("calls/s, ours : ideal, at least", us["calls_per_s"] / ideal, 0.88)
    if setting == "1000/256":
        add("    stretch: calls/s, ours : ideal, at least", us["calls_per_s"] / ideal, 0.75, required=False)
    return rows


TITLES = {"ours": "structmem, whole job", "litellm": "bare litellm.acompletion", "inspect": "Inspect AI, tuned"}


def show(setting: str, job: dict, found: dict, ideal: float) -> list[bool | None]:
    """Print one setting's table and bars; the outcomes of the required bars."""
    calls = 2 * (job["entries"] or 200) * job["generations"]
    print(f"\n{setting.replace('/', ' ms, ')} calls open at once; {calls:,} calls; ideal {ideal:,.0f} calls/s")
    print(
        f"{'':<26}{'calls/s':>9}{'of ideal':>10}{'CPU s/1000':>12}{'after import':>14}{'peak MB':>9}{'most open':>11}"
    )
    for name, values in found.items():
        print(
            f"{TITLES[name]:<26}{values['calls_per_s']:>9.1f}{values['calls_per_s'] / ideal:>10.2f}"
            f"{values['cpu']:>12.2f}{values['cpu_after_import']:>14.2f}{values['rss']:>9.0f}{values['open']:>11.0f}"
        )
    print(f"{'(the mock server itself)':<45}{found['ours']['mock_cpu']:>12.2f}")
    outcomes = []
    for what, value, bar, required, met in bars(setting, ideal, found):
        said = "not measured" if met is None else "met" if met else "MISSED" if required else "not reached"
        print(f"{what:<46}{'' if value is None else f'{value:.2f}':>6}{bar:>8.2f}   {said}")
        if required:
            outcomes.append(met)
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--inspect-python", default=sys.executable, help="a Python that has inspect-ai, inspect-evals, openai"
    )
    parser.add_argument("--settings", nargs="+", default=["50/64", "1000/64", "1000/256"])
    parser.add_argument("--runs", type=int, default=3, help="runs of each; medians are shown")
    parser.add_argument("--entries", type=int, default=0, help="entries; 0 takes all 200")
    parser.add_argument("--structure", default="fixed", help="our arm (embedding structurer); 'flat' sorts nothing")
    parser.add_argument("--job", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        name, path = arguments.job
        print("\n" + json.dumps({"ours": ours, "litellm": litellm}[name](json.loads(Path(path).read_text()))))
        return 0
    from mock_server import Mock

    names, outcomes = ["ours", "litellm"], []
    with tempfile.TemporaryDirectory() as place:
        python, imported = arguments.inspect_python, 0.0
        try:
            subprocess.run([python, "-c", INSPECT_IMPORT], check=True, capture_output=True)
            _, imported, _ = measured([python, "-c", INSPECT_IMPORT], Path(place))
            names.append("inspect")
        except (OSError, subprocess.CalledProcessError):
            print(
                f"Inspect AI cannot be imported by {python}: its bars are not checked. It needs inspect-ai, "
                "inspect-evals and openai, in an environment of its own if you like; name it by --inspect-python."
            )
        print(
            f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; "
            f"medians of {arguments.runs}, in turn; structure {arguments.structure}",
            flush=True,
        )
        with Mock() as mock:
            for setting in arguments.settings:
                latency, concurrency = map(int, setting.split("/"))
                job = {
                    "latency_ms": latency, "concurrency": concurrency, "entries": arguments.entries,
                    "generations": GENERATIONS.get(setting, 3), "structure": arguments.structure,
                    "messages": str(Path(place) / "messages.json"), "inspect_import_s": imported,
                }  # fmt: skip
                write_messages(job, Path(job["messages"]))
                runs = {name: [] for name in names}
                for turn in range(arguments.runs):
                    for name in names[turn % len(names) :] + names[: turn % len(names)]:
                        runs[name].append(one_run(name, job, mock, python))
                found = {name: {k: median(run[k] for run in each) for k in each[0]} for name, each in runs.items()}
                outcomes += show(setting, job, found, concurrency * 1000 / latency)
    if False in outcomes:
        print("\nA bar is missed.", file=sys.stderr)
        return 1
    return 3 if None in outcomes else 0


if __name__ == "__main__":
    raise SystemExit(main())
