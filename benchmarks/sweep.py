"""One sweep of a few cells with 1 and 2 jobs on this machine, and on 1 and 2 Dask workers: seconds and ratios.

    python benchmarks/sweep.py                # 6 cells of a notebook that only computes; two to three minutes
    python benchmarks/sweep.py --wait 10      # cells that wait, as for a provider, instead of computing
    python benchmarks/sweep.py --notebook     # 3 cells of 10_cross_domain, recorded calls

Each cell starts a process and a kernel, which is most of what a short one takes. The cluster is a LocalCluster; the
time that it takes to come up is shown apart. There is no bar; a cell that fails ends the benchmark.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # structmem of this checkout

from structmem.sweep_running import run_sweep
from structmem.sweeps import load_sweep

PARAMETERS = "number: int = 0\nwait_s: float = 0.0\nloops: int = 0"
WORK = "import time\ntime.sleep(wait_s)\ntotal = sum(n % 7 for n in range(loops))"
LOOPS = 30_000_000  # some two seconds of one core


def write_notebook(path: Path) -> None:
    """A notebook with parameters that computes and waits."""
    import nbformat

    kernel = {"name": "python3", "language": "python", "display_name": "Python 3"}
    book = nbformat.v4.new_notebook(metadata={"kernelspec": kernel})
    book.cells = [nbformat.v4.new_code_cell(text) for text in (PARAMETERS, WORK)]
    book.cells[0].metadata["tags"] = ["parameters"]
    nbformat.write(book, path)


def sweep_file(folder: Path, options) -> Path:
    """The sweep, in YAML (JSON is YAML)."""
    if options.notebook:
        arms = [["flat", "fixed"], ["flat", "dynamic"], ["flat", "tree"]]
        keys = {"notebook": "10_cross_domain", "parameters": {"limit": 4}, "grid": {"structures": arms}}
    else:
        write_notebook(folder / "book.ipynb")
        fixed = {"wait_s": options.wait} if options.wait else {"loops": LOOPS}
        grid = {"number": list(range(options.cells))}
        keys = {"notebook": str(folder / "book.ipynb"), "parameters": fixed, "grid": grid}
    file = folder / "sweep.yaml"
    file.write_text(json.dumps({"output": str(folder / "out"), **keys}))
    return file


def measured(options, jobs: int, workers: int) -> tuple[float, float]:
    """Seconds of the whole sweep in a fresh folder, and seconds until the cluster was up."""
    with tempfile.TemporaryDirectory() as place:
        os.environ["STRUCTMEM_STORE"] = str(Path(place, "store.sqlite"))  # not the project's, which would be sent
        sweep = load_sweep(sweep_file(Path(place), options))
        began, up, local = time.monotonic(), 0.0, None
        if workers:
            from distributed import LocalCluster

            local = LocalCluster(
                n_workers=workers, threads_per_worker=1, processes=True, host="127.0.0.1",
                dashboard_address="127.0.0.1:0", local_directory=place,
            )  # fmt: skip
            up = time.monotonic() - began
        try:
            began = time.monotonic()
            address = local.scheduler_address if local else None
            status = run_sweep(sweep, sweep.cells, {}, jobs=jobs, scheduler=address, say=lambda _: None)
            took = time.monotonic() - began
        finally:
            if local:
                local.close()
        if status:
            raise SystemExit((Path(place) / "out" / "sweep.csv").read_text())
        return took, up


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=6)
    parser.add_argument("--wait", type=float, default=0.0, metavar="S", help="each cell waits so long")
    parser.add_argument("--notebook", action="store_true", help="3 cells of 10_cross_domain instead")
    options = parser.parse_args()
    what = "3 cells of 10_cross_domain" if options.notebook else f"{options.cells} cells"
    print(f"{what}, {os.cpu_count()} cores")
    print(f"{'':<24}{'seconds':>9}{'ratio':>8}{'cluster up':>12}")
    for title, jobs, workers in (("job", 1, 0), ("job", 2, 0), ("Dask worker", 1, 1), ("Dask worker", 1, 2)):
        n = workers or jobs
        took, up = measured(options, jobs, workers)
        if n == 1:
            alone = took
        shown = f"{up:>11.1f}s" if workers else ""
        print(f"{n} {title + 's' * (n > 1):<22}{took:>9.1f}{alone / took:>8.2f}{shown}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
