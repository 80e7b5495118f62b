"""Cells of a sweep as processes: one for each notebook, so that a crash takes no other with it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from .errors import StructmemError
from .masking import Masker
from .sweeps import Cell, Sweep

STAGGER_S = 0.3  # between two starts: kernels that start at one moment may pick one port
GRACE_S = 15.0  # for a notebook that is told to stop
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_MAX_THREADS", "RAYON_NUM_THREADS")

_running: set[subprocess.Popen] = set()
_stopping = threading.Event()
_starting = threading.Lock()


def job_of(sweep: Sweep, cell: Cell) -> dict:
    """A cell as `run_job` takes it; what an earlier run of it wrote into the sweep's folder is set aside."""
    own = [str(cell.results)] if cell.results and cell.results.is_relative_to(cell.folder) else []
    return {
        "cell": cell.name, "notebook": sweep.notebook, "text": sweep.text, "values": cell.given | cell.places,
        "executed": str(sweep.executed(cell).absolute()), "aside": own, "folder": cell.told,
        "places": list(cell.places),
    }  # fmt: skip


def run_job(job: Mapping, environment: Mapping[str, str] = {}, threads: int = 1) -> dict:
    """Run one notebook in a process of its own and wait for it.

    Parameters
    ----------
    job : dict
        See `job_of`. Plain values: ``notebook`` (file name), ``text`` (its content, so that it is what was checked),
        ``values`` (parameters), ``executed`` (path of the executed copy), ``aside`` (results of an earlier run, which
        get another name first: a notebook adds its rows to a file that is there).
    environment : dict of str to str
        Variables of the process beside this one's.
    threads : int
        Threads for linear algebra, unless the environment says another number.

    Returns
    -------
    dict
        ``status`` (``finished``, ``failed``, ``stopped``), ``exception``, ``reason``, ``seconds``.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="structmem-") as place, tempfile.TemporaryFile() as said:
        Path(place, "job.json").write_text(json.dumps(job), encoding="utf-8")
        limits = {name: str(threads) for name in _THREADS if name not in os.environ}
        with _starting:
            if _stopping.is_set():
                return _outcome("stopped", began)
            process = subprocess.Popen(
                [sys.executable, "-m", __name__, place], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said,
                env=os.environ | limits | dict(environment),
                close_fds=False,  # it keeps the sweep's lock, so that a new sweep waits for what a killed one left
                start_new_session=True,  # Ctrl-C reaches the sweep alone, which then stops its notebooks
            )  # fmt: skip
            _running.add(process)
            time.sleep(STAGGER_S)
        try:
            status = process.wait()
        finally:
            _running.discard(process)
            _end(process)
        if _stopping.is_set():
            return _outcome("stopped", began)
        try:
            return _outcome(began=began, **json.loads(Path(place, "outcome.json").read_text(encoding="utf-8")))
        except (OSError, ValueError):
            said.seek(0)
            last = said.read().decode(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
            how = f"signal {-status}" if status < 0 else f"exit status {status}"
            return _outcome("failed", began, "ProcessDied", f"{how}: {Masker().mask(last[0])}")


def _outcome(status: str, began: float, exception: str = "", reason: str = "") -> dict:
    seconds = round(time.monotonic() - began, 2)
    return {"status": status, "exception": exception, "reason": reason, "seconds": seconds}


def stop_jobs() -> None:
    """Stop every notebook that this process runs, and start no other; finished calls are in the store already."""
    _stopping.set()
    deadline = time.monotonic() + GRACE_S
    for process in list(_running):
        _end(process)
    while _running and time.monotonic() < deadline:
        time.sleep(0.05)
    for process in list(_running):
        process.kill()


def resume_jobs() -> None:
    """Let this process start notebooks again after `stop_jobs`."""
    _stopping.clear()


def _end(process: subprocess.Popen) -> None:
    """The process takes the end of its standard input for the end of this one."""
    try:
        process.stdin.close()
    except OSError:
        pass


def run_here(jobs: Iterable[Mapping], at_once: int, done: Callable[[Mapping, dict], None]) -> None:
    """Run jobs on this machine, some at once; `done` is called in this thread with each job and its outcome.

    An interruption stops all of them, and none starts any more; `done` is then called for those that were under way.
    """
    resume_jobs()
    threads = max(1, (os.cpu_count() or 1) // at_once)
    with ThreadPoolExecutor(at_once) as pool:
        waiting = {pool.submit(run_job, job, threads=threads): job for job in jobs}
        try:
            for future in as_completed(list(waiting)):
                done(waiting.pop(future), future.result())
        except BaseException:
            for future in waiting:
                future.cancel()
            stop_jobs()
            for future, job in waiting.items():
                if not future.cancelled():
                    done(job, future.result())
            raise


def set_aside(results: Iterable[str]) -> None:
    """Give results of an earlier run, and their manifests, another name."""
    for old in results:
        for file in (Path(old), Path(f"{old}.manifest.json")):
            if file.exists():
                file.replace(f"{file}.earlier")


# -- in the process ---------------------------------------------------------------------------------------------------


def _stop_with_parent() -> None:
    """A sweep that was killed must not leave notebooks behind that go on asking and paying."""
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGINT)  # papermill ends the kernel then, and what ran is kept
    time.sleep(GRACE_S / 2)
    os.kill(os.getpid(), signal.SIGKILL)  # a kernel ends by itself when its parent is gone


def skip_slow_import() -> None:
    """For a process that is ours: without it jsonschema, which nbformat imports, builds a parser of internationalized
    addresses for two seconds, and no notebook's schema has any."""
    sys.modules.setdefault("rfc3987_syntax", None)


def _main(place: str) -> None:
    parent = os.getppid()  # before the imports, which take a second
    skip_slow_import()
    os.umask(0o077)  # executed notebooks may quote memories
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell starts in the background
    from .notebooks import NotebookError, run_notebook

    threading.Thread(target=_stop_with_parent, daemon=True).start()
    job = json.loads(Path(place, "job.json").read_text(encoding="utf-8"))
    source = Path(place, job["notebook"])
    source.write_text(job["text"], encoding="utf-8")
    outcome = {"status": "finished"}
    set_aside(job["aside"])
    try:
        run_notebook(source, job["values"], job["executed"])
    except NotebookError as error:
        outcome = {"status": "failed", "exception": error.exception, "reason": error.reason}
    except (StructmemError, OSError, KeyboardInterrupt) as error:
        outcome = {"status": "failed", "exception": type(error).__name__, "reason": str(error)}
    if "reason" in outcome:
        lines = Masker().mask(outcome["reason"]).strip().splitlines()
        outcome["reason"] = lines[0][:300] if lines else ""
    Path(place, "outcome.json").write_text(json.dumps(outcome), encoding="utf-8")
    if os.getppid() != parent:  # nobody is left to read it
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    _main(sys.argv[1])
