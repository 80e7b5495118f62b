"""Cells of a sweep on a Dask cluster: each worker with a store of its own, and everything brought back as bytes."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from . import __version__
from .errors import InputError, SetupError
from .paths import default_store
from .sweep_jobs import job_of, resume_jobs, run_job, set_aside, stop_jobs
from .sweeps import Cell, Sweep, identity, input_digest, write_whole

PART = 4_000_000  # bytes of a store in one message
POLL_S = 2.0  # how soon a worker that is gone is noticed


def run_on_cluster(
    address: str,
    sweep: Sweep,
    todo: Sequence[Cell],
    done: Callable[[Mapping, dict], None],
    *,
    worker_store: str | None = None,
    say: Callable[[str], None] = print,
    warn: Callable[[str], None] = print,
) -> None:
    """Run cells on the workers that a scheduler has now, one at a time on each.

    No shared file system is needed: notebook and parameters go to the worker, and the executed notebook, results and
    figures come back. Where cells make calls, each worker first gets the calls of this machine's store, so that none is
    paid for again, keeps its own in a file beside its scratch folder or in `worker_store`, and at the end all of them
    are merged into this machine's store. Keys come from the worker's environment and are never sent. Dask's protocol
    runs code: use only a cluster and a network that you trust, or TLS (``tls://…``, set up in Dask's configuration).

    Raises
    ------
    InputError
        If the address is none, or a cell writes elsewhere than into the sweep's output, or names its own store.
    SetupError
        If the library or the cluster is not there, has no workers, or a worker has another structmem.
    """
    for cell in todo:
        if elsewhere := [n for n, place in cell.places.items() if place and not place.startswith(cell.told)]:
            raise InputError(
                f"cell {cell.name} writes its {elsewhere[0]} to {cell.places[elsewhere[0]]!r}; on a cluster leave "
                f"{elsewhere[0]!r} out, so that it is brought back into the sweep's output folder."
            )
    if elsewhere := sorted(sweep.stores - {"", "recorded"}):
        raise InputError(f"store {elsewhere[0]!r} is on one machine; on a cluster leave 'store' empty, or 'recorded'.")
    live = "" in sweep.stores
    client, distributed = _connect(address)
    try:
        workers = _workers(client)
        _check_same(client, workers)
        say(f"{len(workers)} workers: {', '.join(sorted(workers.values()))}")
        main = default_store()
        project = hashlib.sha256(f"{platform.node()} {main}".encode()).hexdigest()[:8]
        stores = dict.fromkeys(workers, None)
        if live:
            stores = {worker: _on(client, worker, store_place, worker_store, project) for worker in workers}
            _send_store(client, stores, main, say)
        try:
            _run(client, distributed, sweep, todo, done, workers, stores)
        except BaseException:
            with suppress(Exception):  # a scheduler that is gone: its workers end, and their notebooks with them
                client.run(stop_jobs)
            raise
        finally:
            if live:
                _bring_stores(client, stores, workers, main, say, warn)
    finally:
        client.close()


def _connect(address: str):
    try:
        import distributed
    except ModuleNotFoundError:
        raise SetupError("A sweep on a cluster needs distributed: pip install 'structmem[cluster]'.") from None
    if not re.match(r"(tcp|tls|ws|wss|ucx)://[^/]+:\d+$", address):
        raise InputError(f"--scheduler must be like tcp://HOST:8786 or tls://HOST:8786, got {address!r:.100}.")
    try:
        return distributed.Client(address, timeout=20, name="structmem"), distributed
    except (OSError, TypeError, ValueError) as error:  # TypeError: tls:// without certificates in the configuration
        raise SetupError(
            f"There is no Dask scheduler to be reached at {address} ({type(error).__name__}); is one running "
            "there, and is its port open to this machine?"
        ) from None


def _workers(client) -> dict[str, str]:
    """Names of the workers by address."""
    try:
        found = client.scheduler_info(n_workers=-1)["workers"]
    except (KeyError, OSError):  # KeyError: what a client says that has lost its scheduler
        raise SetupError("The Dask scheduler is gone; start it, and the same command goes on from there.") from None
    return {address: str(each["name"]) for address, each in found.items()}


def _check_same(client, workers: Mapping[str, str]) -> None:
    if not workers:
        raise SetupError("The scheduler has no workers; start some with: dask worker ADDRESS --nthreads 1")
    for address, found in client.run(identity, on_error="return").items():
        if isinstance(found, Exception):
            raise SetupError(
                f"Worker {address} cannot import this structmem ({type(found).__name__}: {found!s:.100}); install "
                f"structmem {__version__} with its extra 'notebooks' in the worker's environment."
            )
        if found != identity():
            raise SetupError(
                f"Worker {address} has structmem {found[0]} ({found[1]}), and here is {__version__} ({identity()[1]}); "
                "install the same on both, then start the workers anew."
            )


def _on(client, worker: str, do: Callable, *args):
    future = client.submit(do, *args, workers=[worker], allow_other_workers=False, pure=False)
    while True:
        try:
            return future.result(timeout=POLL_S)
        except TimeoutError:
            if future.done():
                raise
            if worker not in _workers(client):  # else it would be waited for forever
                future.cancel()
                raise SetupError(f"the worker {worker} is gone") from None


def _run(client, distributed, sweep: Sweep, todo, done, workers, stores) -> None:
    """Cells are bound to a worker: Dask would run the cell of a lost one again elsewhere, and pay for it twice."""
    client.run(resume_jobs)
    free, waiting, running = deque(workers), deque(todo), {}
    while running or (waiting and free):
        while free and waiting:
            worker, cell = free.popleft(), waiting.popleft()
            job = job_of(sweep, cell)
            future = client.submit(
                work, job, cell.inputs, stores[worker], workers=[worker], allow_other_workers=False, pure=False,
                retries=0,
            )  # fmt: skip
            running[future] = (job, cell, worker)
        try:
            distributed.wait(list(running), timeout=POLL_S, return_when="FIRST_COMPLETED")
        except (TimeoutError, distributed.TimeoutError, distributed.CancelledError):  # cancelled: see _workers
            pass
        alive = _workers(client)
        for future, (job, cell, worker) in list(running.items()):
            if future.done():
                outcome = _came_back(cell, job, future)
                free.append(worker)
            elif worker not in alive:
                future.cancel()
                outcome = _failed("WorkerLost", f"the worker {workers[worker]} is gone; its notebook may have paid")
            else:
                continue
            del running[future]
            done(job, outcome | {"where": workers[worker]})
    for cell in waiting:
        done(job_of(sweep, cell), _failed("WorkerLost", "no worker is left") | {"status": "stopped"})


def _failed(exception: str, reason: str) -> dict:
    return {"status": "failed", "exception": exception, "reason": reason, "seconds": 0.0}


def _came_back(cell: Cell, job: Mapping, future) -> dict:
    """Put the files of a cell where they belong on this machine."""
    try:
        outcome, files = future.result()
    except Exception as error:
        return _failed(type(error).__name__, (str(error).splitlines() or [""])[0][:300])
    set_aside(job["aside"])
    for name, data in files.items():
        target = cell.folder / name
        if target.resolve().is_relative_to(cell.folder.resolve()):  # whatever a worker says, nothing lands elsewhere
            write_whole(target, data)
    return outcome


# -- on a worker ------------------------------------------------------------------------------------------------------


def store_place(folder: str | None, project: str) -> str:
    """The file of this worker's own store: outlives the worker, whose scratch folder is removed when it closes."""
    from distributed import get_worker

    worker = get_worker()
    place = Path(folder).expanduser() if folder else Path(worker.local_directory).parent
    place.mkdir(parents=True, exist_ok=True)
    return str(place.absolute() / f"structmem-{re.sub(r'[^A-Za-z0-9.-]+', '-', str(worker.name))}-{project}.sqlite")


def work(job: Mapping, inputs: Mapping, store: str | None) -> tuple[dict, dict[str, bytes]]:
    """Run a cell's notebook in a scratch folder; its outcome, and the files it left there by name."""
    from distributed import get_worker

    for name, digest in inputs.items():
        if (found := input_digest(name)) != digest:
            what = "not there" if found is None else "another one"
            return _failed("InputError", f"the file {name} is {what} on the worker; put the same file there."), {}
    scratch = Path(tempfile.mkdtemp(prefix="cell-", dir=get_worker().local_directory)).absolute()
    told = job["folder"]
    try:
        moved = {n: v.replace(told, str(scratch), 1) if n in job["places"] else v for n, v in job["values"].items()}
        here = {**job, "values": moved, "executed": str(scratch / job["notebook"]), "aside": []}
        outcome = run_job(here, {"STRUCTMEM_STORE": store} if store else {})
        files = {str(f.relative_to(scratch)): f.read_bytes() for f in scratch.rglob("*") if f.is_file()}
        for name in files:
            if name.endswith(".ipynb"):  # its parameters shall name the places on the machine of the sweep
                files[name] = files[name].replace(str(scratch).encode(), told.encode())
        return outcome, files
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


# -- stores, in parts -------------------------------------------------------------------------------------------------


def snapshot(store: str) -> tuple[str, int] | None:
    """A copy of a store as it is at this moment, and its size; None: there is no such store."""
    from .upkeep import merge

    if not Path(store).exists():
        return None
    handle, copy = tempfile.mkstemp(prefix=".structmem-", suffix=".sqlite", dir=Path(store).parent)
    os.close(handle)
    os.unlink(copy)
    merge(copy, [store])
    return copy, os.path.getsize(copy)


def read_part(copy: str, place: int) -> bytes:
    with open(copy, "rb") as file:
        file.seek(place)
        return file.read(PART)


def add_part(copy: str, place: int, part: bytes) -> None:
    again = 0 if place else os.O_TRUNC  # what an interrupted transfer left
    with os.fdopen(os.open(copy, os.O_WRONLY | os.O_CREAT | again, 0o600), "wb") as file:
        file.seek(place)
        file.write(part)


def take_in(store: str, copy: str) -> int:
    """Merge a copy into a store and remove it; the number of calls that were new."""
    from .upkeep import merge

    try:
        return merge(store, [copy])[0].added
    finally:
        remove(copy)


def remove(copy: str) -> None:
    for end in ("", "-wal", "-shm"):
        Path(f"{copy}{end}").unlink(missing_ok=True)


def _send_store(client, stores: Mapping[str, str], main: Path, say) -> None:
    found = snapshot(str(main))
    if found is None:
        return
    copy, size = found
    try:
        say(f"Sending the calls of {main.name} to each worker: {size / 1e6:,.1f} MB")
        for worker, store in stores.items():
            for place in range(0, size, PART):
                _on(client, worker, add_part, f"{store}.sent", place, read_part(copy, place))
            _on(client, worker, take_in, store, f"{store}.sent")
    finally:
        remove(copy)


def _bring_stores(client, stores: Mapping[str, str], workers: Mapping[str, str], main: Path, say, warn) -> None:
    alive, added = (), 0
    with suppress(SetupError):
        alive = _workers(client)
    for worker, store in stores.items():
        try:
            if worker not in alive:
                raise OSError("the worker is gone")
            found = _on(client, worker, snapshot, store)
            if found is None:
                continue
            main.parent.mkdir(parents=True, exist_ok=True)
            brought = str(main.with_name(f".{main.name}.{Path(store).name}"))
            for place in range(0, found[1], PART):
                add_part(brought, place, _on(client, worker, read_part, found[0], place))
            _on(client, worker, remove, found[0])
            added += take_in(str(main), brought)
        except Exception as error:  # of one worker; the others' calls still come
            warn(
                f"the calls of worker {workers[worker]} were not brought back ({error!s:.200}); they are in {store} on "
                "its machine: structmem store merge FILE"
            )
    say(f"Calls brought back into {main}: {added} new")
