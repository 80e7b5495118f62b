"""How long `import structmem`, `structmem --help` and loading the 500 entries take; exit status 1 above the bars.

    python benchmarks/startup.py

Each runs in processes of its own, in turn with bare Python, and the least of the runs is taken: that is the time of
the work itself, with little of what else the machine does. The bars are 0.2 s above bare Python for the first two, and
0.3 s after import for the entries.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

RUNS = 9
ROOT = Path(__file__).parents[1]
ENTRIES = (
    "import time, structmem as sm; load = sm.load_entries; began = time.perf_counter(); n = len(load('persistbench')); "
    "print(time.perf_counter() - began, n)"
)


def seconds(*arguments: str) -> float:
    """Wall time of one process."""
    began = time.perf_counter()
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True, env=env)
    return time.perf_counter() - began


def main() -> int:
    """Print the table; 1 when a bar is missed."""
    jobs = {
        "bare Python": ("-c", "pass"),
        "import structmem": ("-c", "import structmem"),
        "structmem --help": ("-m", "structmem", "--help"),
    }
    times = {name: [] for name in jobs}
    for _ in range(RUNS):
        for name, arguments in jobs.items():
            times[name].append(seconds(*arguments))
    bare, missed = min(times["bare Python"]), False
    print(f"{'':<22}{'least of ' + str(RUNS):>14}{'above bare':>14}{'bar':>8}")
    for name in jobs:
        above, bar = min(times[name]) - bare, "" if name == "bare Python" else "0.20 s"
        missed |= above > 0.2
        print(f"{name:<22}{min(times[name]):>12.3f} s{above:>12.3f} s{bar:>8}")
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    found = [subprocess.run([sys.executable, "-c", ENTRIES], capture_output=True, text=True, env=env) for _ in range(3)]
    if any(process.returncode for process in found):
        print("500 entries: inspect-evals is not installed; `structmem local install` adds it")
        return int(missed)
    least = min(float(process.stdout.split()[0]) for process in found)
    print(f"{'500 entries, loaded':<22}{least:>12.3f} s{'':>14}{'0.30 s':>8}")
    return int(missed or least > 0.3)


if __name__ == "__main__":
    raise SystemExit(main())
