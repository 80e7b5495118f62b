"""Notebooks: run them through papermill with checked parameters, check executed ones, copy the shipped ones."""

from __future__ import annotations

import csv
import json
import os
import random
import shutil
import sys
import time
import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

from .errors import InputError, SetupError, StructmemError, choice
from .masking import Masker
from .parameters import Parameter, assigned, check_parameters, check_values, declared, is_injected
from .paths import is_file, root, shared

__all__ = ["NotebookError", "check_parameters", "check_run", "copy_notebooks", "find_notebook", "run_notebook"]

# Seconds before a kernel is started again, half as long again by chance, so that many do not meet at the next port.
START_AGAIN_S = (0.5, 2.0, 5.0)
_NOT_STARTED = ("Kernel died before replying", "Kernel didn't respond")  # what jupyter_client says before any cell


class NotebookError(StructmemError, RuntimeError):
    """A cell of a notebook failed while it ran, or the kernel did.

    Attributes
    ----------
    exception : str
        Name of the exception.
    reason : str
        What it said.
    """

    def __init__(self, message: str, exception: str = "", reason: str = ""):
        super().__init__(message)
        self.exception, self.reason = exception, reason


def parameters_of(notebook) -> dict[str, Parameter]:
    """The parameters of a notebook as nbformat read it; empty when no cell is tagged ``parameters``."""
    cells = [cell.source for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    return declared(cells[0]) if cells else {}


def read_notebook(path: Path):
    """Read a notebook with nbformat.

    Raises
    ------
    InputError
        If the file is missing or is no notebook.
    """
    nbformat = extra("nbformat")
    try:
        return nbformat.read(path, as_version=4)
    except FileNotFoundError:
        raise InputError(f"there is no notebook {path}.") from None
    except Exception as error:
        raise InputError(f"{path} is not a notebook ({type(error).__name__}).") from error


def extra(name: str):
    """Import a library of the ``notebooks`` extra.

    Raises
    ------
    SetupError
        If it is not installed.
    """
    from importlib import import_module

    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise SetupError(f"Notebooks need {error.name}: pip install 'structmem[notebooks]'.") from None


def find_notebook(name: str | Path) -> Path:
    """A notebook by path, by name or by the number it starts with (``10``).

    Raises
    ------
    InputError
        If there is none; the menu is shown.
    """
    if Path(name).suffix == ".ipynb" and is_file(name):
        return Path(name)
    known = {path.stem: path for path in sorted(shared("notebooks").glob("*.ipynb"))}
    stem = Path(name).name.removesuffix(".ipynb")
    for title, path in known.items():
        if stem in (title, title.split("_")[0]):
            return path
    raise choice("notebook", str(name), known)


def checked_values(name: str, known: Mapping[str, Parameter], given: Mapping[str, object]) -> dict[str, object]:
    """The values that a notebook called `name` with the parameters `known` would run with, beside its defaults.

    A text stands for a value of the declared type (see `Parameter.read`).

    Raises
    ------
    InputError
        If a parameter does not exist, a value has the wrong type or holds a key.
    """
    if given and not known:
        raise InputError(f"{name} has no cell tagged 'parameters', so it takes none, got {sorted(given)}.")
    check_values(known, {key: value for key, value in given.items() if key not in known})
    values = {key: known[key].read(value) if isinstance(value, str) else value for key, value in given.items()}
    check_values(known, values)
    _refuse_secrets(values)
    return values


def run_notebook(
    name: str | Path, parameters: Mapping[str, object], output: str | Path | None = None, folder: Path | None = None
) -> Path:
    """Run a notebook and keep the executed copy.

    Parameters
    ----------
    name : str or Path
        As in `find_notebook`.
    parameters : dict
        Checked before anything runs; a text stands for a value of the declared type (see `Parameter.read`).
    output : str or Path
        The executed copy; ``runs/NAME.ipynb`` in the project by default.
    folder : Path
        Where relative paths in parameters lie; the working directory by default.

    Returns
    -------
    Path
        The executed notebook.

    Raises
    ------
    InputError
        If the notebook or a parameter does not exist, or a parameter has the wrong type.
    NotebookError
        If a cell fails or the kernel dies; the executed part is kept as ``NAME.unfinished.ipynb``. A kernel that does
        not get ready is started again three times.
    """
    source = find_notebook(name)
    values = checked_values(source.name, parameters_of(read_notebook(source)), parameters)
    target = Path(output) if output else root() / "runs" / source.name
    unfinished = target.with_name(f"{target.stem}.unfinished.ipynb")
    # A name of its own: a run that fails leaves an earlier copy whole, and two runs at once do not write into one file.
    running = target.with_name(f"{target.stem}.running-{uuid4().hex[:8]}.ipynb")
    papermill, no_kernel = extra("papermill"), extra("jupyter_client.kernelspec").NoSuchKernel
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _execute(
            papermill, str(source), str(running), values, kernel_name="python3", cwd=folder and str(folder),
            start_timeout=120, progress_bar=sys.stderr.isatty(), language="python",
            extra_arguments=["--log-level=CRITICAL"],  # else each kernel warns that its local socket is not encrypted
        )  # fmt: skip
        running.replace(target)
    except papermill.PapermillExecutionError as error:
        raise NotebookError(
            f"{source.name}, cell {error.cell_index}: {error.ename}: {error.evalue} "
            f"(the run up to there: {unfinished})",
            error.ename,
            error.evalue,
        ) from None
    except RuntimeError as error:  # nbclient and jupyter_client have no better class for a kernel that is gone
        raise NotebookError(
            f"{source.name}: {error} (killed, out of memory, or never started; the run up to there: {unfinished})",
            type(error).__name__,
            str(error),
        ) from None
    except no_kernel:
        raise SetupError(
            "Jupyter has no kernel 'python3' here; install one with: python -m ipykernel install --sys-prefix"
        ) from None
    except OSError as error:
        raise SetupError(f"{target} cannot be written ({error.strerror}); name another place for the output.") from None
    finally:
        if running.exists():
            running.replace(unfinished)
    return target


def _execute(papermill, *args, **how) -> None:
    """Run, and start again a kernel that never got ready: no cell has run then, so nothing is asked or paid twice."""
    for pause in (*START_AGAIN_S, None):
        try:
            papermill.execute_notebook(*args, **how)
            return
        except RuntimeError as error:
            if pause is None or not str(error).startswith(_NOT_STARTED):
                raise
            time.sleep(pause * random.uniform(1, 1.5))


def _refuse_secrets(values: Mapping[str, object]) -> None:
    """An executed notebook keeps its parameters for all to read."""
    masker = Masker()
    masker.learn(values)
    if masker.mask(str(values)) != str(values):
        raise InputError(
            "a parameter holds a key, and the executed notebook would keep it; set the provider's environment "
            "variable (such as OPENAI_API_KEY) instead."
        )


def copy_notebooks(folder: str | Path, force: bool = False) -> tuple[list[Path], list[Path]]:
    """Copy notebooks, recorded calls and the list of models into a folder, laid out as in a checkout.

    Returns
    -------
    (copied, kept)
        ``kept``: files that were there with another content and were left alone; `force` replaces them.
    """
    folder, copied, kept = Path(folder), [], []
    for name in ("notebooks", "data/recorded", "data/models.yaml", "data/analysis_plan.yaml"):
        source = shared(name)
        for file in sorted(source.rglob("*")) if source.is_dir() else [source]:
            if not file.is_file() or ".ipynb_checkpoints" in file.parts:
                continue
            target = folder / name / file.relative_to(source) if source.is_dir() else folder / name
            if target.exists() and (target.samefile(file) or target.read_bytes() == file.read_bytes()):
                continue
            if target.exists() and not force:
                kept.append(target)
                continue
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target)
            except OSError as error:
                raise SetupError(f"{target} cannot be written ({error.strerror}); name another folder.") from None
            copied.append(target)
    return copied, kept


def check_run(path: str | Path) -> list[str]:
    """What is wrong with an executed notebook, or with every notebook and results file of a folder, sweeps included.

    A notebook must have run to its end without an error, with parameters that it declares; each results file that it
    names, and each one in the folder, must be a valid results table that agrees with its manifest. A sweep's output
    folder, or one that lies in the folder, is checked with its cells, each of which must be finished.

    Returns
    -------
    list of str
        One sentence per problem; empty when all is well.

    Raises
    ------
    InputError
        If there is nothing to check at `path`.
    """
    path = Path(path)
    if not path.exists():
        raise InputError(f"there is nothing at {path}; expected an executed notebook, a results file or a folder.")
    problems, sweeps = [], []
    if path.is_dir():
        sweeps = [
            one for one in (path, *sorted(path.glob("*"))) if is_file(one / "sweep.csv") and (one / "cells").is_dir()
        ]
        cells = {s: _cells(s / "sweep.csv") for s in sweeps}  # a folder may also hold those of an earlier grid
        folders = dict.fromkeys(
            [path, *(one for s in sweeps for one in (s, *(s / "cells" / name for name in cells[s])))]
        )
        files = [file for folder in folders for file in sorted(folder.glob("*.ipynb"))]
        tables = [t for folder in folders for t in sorted([*folder.glob("*.parquet"), *folder.glob("*.csv")])]
        tables = [table for table in tables if table.name != "sweep.csv" or table.parent not in sweeps]
    elif path.suffix == ".ipynb":
        files, tables = [path], []
    else:
        files, tables = [], [path]
    if not files and not tables and not sweeps:
        raise InputError(f"{path} holds neither a notebook, a results file nor the output of a sweep.")

    def located(file: Path, found: list[str]) -> list[str]:
        inside = file.is_relative_to(path) and file.parent not in (path, path.parent)
        return [f"{file.parent.relative_to(path)}: {problem}" for problem in found] if inside else found

    for sweep in sweeps:
        problems += located(sweep / "sweep.csv", _check_sweep(sweep, cells[sweep]))
    known = {os.path.realpath(table) for table in tables}
    for file in files:
        found, named = _check_notebook(file)
        problems += located(file, found)
        tables += [table for table in named if os.path.realpath(table) not in known]
        known |= {os.path.realpath(table) for table in named}
    for table in tables:
        problems += located(table, _check_table(table))
    return problems


def _cells(path: Path) -> dict[str, str]:
    """The cells in a sweep's table, and what became of each."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return {Path(row["cell"]).name: row["status"] for row in csv.DictReader(file)}
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as a sweep's table of cells ({type(error).__name__}).") from None


def _check_sweep(sweep: Path, cells: Mapping[str, str]) -> list[str]:
    def status(name: str) -> str:
        gone = cells[name] == "finished" and not any((sweep / "cells" / name).glob("*.ipynb"))
        return "without its notebook" if gone else cells[name]

    rest = Counter(found for found in map(status, cells) if found != "finished")
    words = ", ".join(f"{n} {found}" for found, n in rest.items())
    return [f"sweep.csv: {sum(rest.values())} of {len(cells)} cells not finished ({words})."] if rest else []


def _check_notebook(path: Path) -> tuple[list[str], list[Path]]:
    """Problems of one executed notebook, and the results files that its parameters name."""
    notebook = read_notebook(path)
    problems = []
    cells = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]
    for number, cell in enumerate(cells, 1):
        errors = [output for output in cell.outputs if output.output_type == "error"]
        problems += [f"{path.name}, code cell {number}: {error.ename}: {error.evalue}" for error in errors]
    waiting = sum(cell.execution_count is None for cell in cells)
    if waiting:
        problems.append(f"{path.name}: {waiting} of {len(cells)} code cells did not run.")
    values: dict = {}
    try:
        parameters = parameters_of(notebook)
        values = {name: parameter.default for name, parameter in parameters.items()}
        for cell in cells:
            if is_injected(cell.source):
                given = assigned(cell.source)
                check_values(parameters, given)
                values |= given
    except InputError as error:
        problems.append(f"{path.name}: {error}")
    results = values.get("results")
    if not isinstance(results, str) or not results:
        return problems, []
    here = Path(results).expanduser()
    places = [here] if here.is_absolute() else [folder / here for folder in dict.fromkeys((Path.cwd(), root()))]
    return problems, [file for place in places for file in sorted(place.parent.glob(place.name)) if file.is_file()]


def _check_table(path: Path) -> list[str]:
    import hashlib

    from .results import read_results

    beside = path.with_name(path.name + ".manifest.json")
    try:
        with warnings.catch_warnings():  # what it would warn of is said below
            warnings.simplefilter("ignore")
            table = read_results(path)
        facts = json.loads(beside.read_text(encoding="utf-8"))
    except InputError as error:
        return [str(error)]
    except (OSError, ValueError) as error:
        return [f"{path.name}: its manifest {beside.name} cannot be read ({type(error).__name__})."]
    if facts.get("rows") != len(table):
        return [f"{path.name}: {len(table)} rows, and {facts.get('rows')} in its manifest."]
    if facts.get("file_sha256") != hashlib.sha256(path.read_bytes()).hexdigest():
        return [f"{path.name}: the file was changed after its manifest was written."]
    return []
