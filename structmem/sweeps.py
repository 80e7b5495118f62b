"""A sweep: one notebook over a grid of parameters; SWEEP.yaml read and checked, and which cells are finished."""

from __future__ import annotations

import ast
import glob
import hashlib
import itertools
import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from . import __version__
from .calls import canonical
from .errors import InputError
from .notebooks import checked_values, find_notebook, parameters_of, read_notebook
from .parameters import Parameter
from .paths import PACKAGE, in_project, is_dir, is_file, recorded
from .records import read_text
from .yamlfile import Part, yaml_value

MOST_CELLS = 10_000
MOST_VALUES, MOST_LEVELS = 1_000_000, 20  # in the file: YAML's anchors can make much out of little, or an endless list
_MENU = ("parameters", "grid", "cells", "exclude")
_HASH = 12  # digits at the end of a cell's name
_FILES = {"results": "results.parquet"}  # other places are folders
_SAVING = ("save_results", "write_results")


@dataclass(frozen=True)
class Cell:
    """One run of the notebook.

    Attributes
    ----------
    name : str
        Of its folder: what tells it from the others, and a hash of all parameters given.
    varied : dict
        The parameters that are not the same in every cell.
    given : dict
        All parameters given, without the places in `places` that were chosen here.
    places : dict of str to str
        Parameters that say where the notebook writes (``results``, ``figures``), as it is told.
    inputs : dict of str to str
        Files, folders and patterns that other parameters name, given or by default, and their sha256.
    digest : str
        Hash of the notebook's cells, the parameters, the inputs and structmem's files: what makes it the same run.
    folder : Path
        What is kept of it.
    told : str
        The same folder as `places` begin with, which may be relative to the project.
    """

    name: str
    varied: dict
    given: dict
    places: dict
    inputs: dict
    digest: str
    folder: Path
    told: str

    @property
    def results(self) -> Path | None:
        """Where its results table is written; None: nowhere."""
        return in_project(self.places["results"]) if self.places.get("results") else None

    @property
    def record(self) -> Path:
        """What became of it, as JSON."""
        return self.folder / "cell.json"


@dataclass(frozen=True)
class Sweep:
    """A checked sweep: the notebook's file name and text, the output folder, the cells, and the stores they name (an
    empty one is the project's)."""

    notebook: str
    text: str
    output: Path
    cells: tuple[Cell, ...]
    stores: frozenset[str]

    def executed(self, cell: Cell) -> Path:
        """The executed copy; ``….unfinished.ipynb`` beside it is what is left of a run that failed."""
        return cell.folder / self.notebook


def load_sweep(path: str | Path) -> Sweep:
    """Read a sweep and check every cell of it.

    Parameters
    ----------
    path : str or Path
        A YAML file with ``notebook`` (a name as `find_notebook` takes it, or a path from the working directory or the
        file's own folder), ``output`` (a folder, from the project folder), and some of ``parameters`` (the same in
        every cell), ``grid`` (a list of values by name; every combination is a cell), ``cells`` (a list of further
        parameter sets) and ``exclude`` (a list of parameter sets; cells that have all values of one are left out).

    Raises
    ------
    InputError
        No YAML, unknown or missing keys, an unknown parameter or a value of the wrong type or with a key in it, two
        cells with the same parameters or one place to write, an exclusion that fits no cell, no cell, or too many.
    """
    path = Path(path)
    value = yaml_value(read_text(path), path.name, "a sweep in YAML")
    _refuse_odd(path.name, value)
    if not isinstance(value, dict):
        raise InputError(f"{path.name}: expected a mapping with the keys {['notebook', 'output', *_MENU]}.")
    top = Part(path.name, "", value).parts(("notebook", "output"), _MENU)
    source = _source(top["notebook"].text(), path)
    book = read_notebook(source)
    known = parameters_of(book)
    try:
        output = Path(top["output"].text()).expanduser()
    except RuntimeError:  # ~nobody
        raise top["output"].wrong("a folder") from None
    sets = _sets(path.name, top, known, source.name)
    writes = ({"results", "figures"} if _saves_results(book) else {"figures"}) & known.keys()
    varying = [n for n in known if len({canonical(s.get(n, known[n].default)) for s in sets}) > 1]
    book_digest = [[c.cell_type, c.source, sorted(c.metadata.get("tags", []))] for c in book.cells]
    defaults = {name: parameter.default for name, parameter in known.items()}
    there = {place.name[-_HASH:]: place.name for place in in_project(output / "cells").glob("*")}
    cells, digests = [], {}
    for given in sets:
        varied = {name: given.get(name, known[name].default) for name in varying}
        name = _name(varied or {"notebook": source.stem}, given)
        name = there.get(name[-_HASH:], name)  # what varies changes when a grid grows, and the run is the same
        told = output / "cells" / name
        places = {n: given.get(n, str(told / _FILES.get(n, n))) for n in sorted(writes)}
        inputs = {}
        read = {n: v for n, v in (defaults | given).items() if n not in writes and (n != "store" or v == "recorded")}
        for text in _texts(read):
            if text not in digests:
                digests[text] = input_digest(text)
            if digests[text] is not None:
                inputs[text] = digests[text]
        facts = [book_digest, given, inputs, identity()]
        digest = hashlib.sha256(canonical(facts).encode()).hexdigest()
        cells.append(Cell(name, varied, given, places, inputs, digest, in_project(told), str(told)))
    _refuse_shared(path.name, cells)
    stores = frozenset(c.given.get("store", known["store"].default) if "store" in known else "" for c in cells)
    return Sweep(source.name, source.read_text(encoding="utf-8"), in_project(output), tuple(cells), stores)


def _refuse_odd(file: str, value: object) -> None:
    """Refuse values that JSON, and so a notebook's parameters and the hash of a cell, cannot hold."""
    waiting, seen = [(value, 0)], 0
    while waiting:
        one, level = waiting.pop()
        seen += 1
        if seen > MOST_VALUES or level > MOST_LEVELS:
            raise InputError(
                f"{file}: expected at most {MOST_VALUES:,} values, at most {MOST_LEVELS} levels deep; anchors count "
                "as often as they are used."
            )
        if isinstance(one, dict):
            if odd := [name for name in one if not isinstance(name, str)]:
                raise InputError(f"{file}: the name {odd[0]!r:.80} is no text; put it in quotes.")
            waiting += [(each, level + 1) for each in one.values()]
        elif isinstance(one, list):
            waiting += [(each, level + 1) for each in one]
        elif not isinstance(one, (str, int, float, type(None))) or one != one or one in (math.inf, -math.inf):
            raise InputError(f"{file}: {one!r:.80} is no text, number, truth value or null; put text in quotes.")


def _source(name: str, path: Path) -> Path:
    beside = path.parent / name
    return beside if beside.suffix == ".ipynb" and not is_file(name) and is_file(beside) else find_notebook(name)


def _sets(file: str, top: Mapping[str, Part], known: Mapping[str, Parameter], book: str) -> list[dict]:
    """The parameters given in each cell, read and checked."""

    def checked(where: str, given: Mapping) -> dict:
        try:
            return checked_values(book, known, given)
        except InputError as error:
            texts = [n for n, v in given.items() if n in known and "str" in known[n].annotation and type(v) is not str]
            hint = " YAML reads no, 007 and 2026-01-01 as other things than text: put text in quotes." if texts else ""
            raise InputError(f"{file}: {where}: {error}{hint}") from None

    def mapping(part: Part | None) -> dict:
        if part is None:
            return {}
        if not isinstance(part.value, dict) or not all(isinstance(name, str) for name in part.value):
            raise part.wrong("a mapping from names of parameters to values")
        return part.value

    fixed = checked("parameters", mapping(top.get("parameters")))
    axes = {}
    for name, values in mapping(top.get("grid")).items():
        items = [item.value for item in Part(file, f"grid.{name}", values).items()]
        if name in known and known[name].annotation.startswith("list") and not all(isinstance(i, list) for i in items):
            raise InputError(
                f"{file}: grid.{name} has {items!r:.80}; {name} is itself a list in this notebook, so the grid needs "
                f"a list of lists, such as [{', '.join(f'[{i}]' for i in items[:2])}]."
            )
        if name in fixed:
            raise InputError(f"{file}: {name!r} is in 'parameters' and in 'grid'; leave it in one of them.")
        axes[name] = [checked("grid", {name: item})[name] for item in items]
    listed = top["cells"].items() if "cells" in top else []
    size = (math.prod(map(len, axes.values())) if axes or not listed else 0) + len(listed)
    if size > MOST_CELLS:
        raise InputError(f"{file}: there are {size:,} cells; expected at most {MOST_CELLS:,}.")
    sets = [fixed | dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    if listed:
        sets = (sets if axes else []) + [fixed | checked(part.key, mapping(part)) for part in listed]
    for part in top["exclude"].items() if "exclude" in top else []:
        out = checked(part.key, mapping(part))
        kept = [s for s in sets if any(s.get(n, known[n].default) != v for n, v in out.items())]
        if not out or len(kept) == len(sets):
            raise InputError(f"{file}: {part.key} {out!r} fits no cell, so it excludes nothing; correct or remove it.")
        sets = kept
    if not sets:
        raise InputError(f"{file}: every cell is excluded, so there is nothing to run.")
    seen: dict[str, dict] = {}
    for one in sets:
        whole = canonical({name: one.get(name, parameter.default) for name, parameter in known.items()})
        if whole in seen:
            raise InputError(f"{file}: two cells have the same parameters, {seen[whole]!r:.300} and {one!r:.300}.")
        seen[whole] = one
    return sets


def _saves_results(book) -> bool:
    """Whether the notebook hands its parameter ``results`` to a function that saves them."""
    for cell in book.cells:
        try:
            tree = ast.parse(cell.source) if cell.cell_type == "code" else None
        except SyntaxError:  # a cell with IPython's own syntax
            continue
        for node in ast.walk(tree) if tree else ():
            called = node.func if isinstance(node, ast.Call) else None
            if getattr(called, "attr", getattr(called, "id", None)) in _SAVING:
                arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
                if any(isinstance(one, ast.Name) and one.id == "results" for one in arguments):
                    return True
    return False


def _name(varied: Mapping, given: Mapping) -> str:
    def text(value: object) -> str:
        return value if isinstance(value, str) else canonical(value)

    listed = {name: value if isinstance(value, list) else [value] for name, value in varied.items()}
    shown = [f"{name}={'-'.join(map(text, values))}" for name, values in listed.items()]
    words = re.sub(r"[^A-Za-z0-9.=]+", "-", "_".join(shown).replace("_", "-")).strip("-.")[:60]
    return f"{words}-{hashlib.sha256(canonical(given).encode()).hexdigest()[:_HASH]}"


def _texts(given: Mapping) -> list[str]:
    listed = [v for value in given.values() for v in (value if isinstance(value, list) else [value])]
    return [value for value in listed if isinstance(value, str) and value]


def input_digest(name: str) -> str | None:
    """sha256 of what a parameter names, from the working directory or the project folder: a file, the files of a folder
    or of a pattern, or ``recorded``, the recorded calls and results of the project. None: no file."""
    for place in (Path(name), in_project(name)) if name != "recorded" else (recorded(),):
        if is_file(place):
            return file_digest(place)
        try:
            found = glob.glob(f"{glob.escape(str(place))}/*" if is_dir(place) else str(place), recursive=True)
        except (OSError, ValueError):  # a text that can be no name
            continue
        if files := sorted(file for file in found if is_file(file)):
            parts = [f"{os.path.basename(file)} {file_digest(file)}" for file in files]
            return hashlib.sha256("\n".join(parts).encode()).hexdigest()
    return None


def file_digest(path: str | os.PathLike) -> str:
    """sha256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@cache
def identity() -> tuple[str, str]:
    """This structmem's version, and a hash of its modules, prompts and tables, which tells commits apart."""
    total = hashlib.sha256()
    for kind in ("py", "md", "yaml", "txt", "jsonl", "csv"):
        for file in sorted(PACKAGE.rglob(f"*.{kind}")):
            if "share" not in file.relative_to(PACKAGE).parts:  # notebooks and data of a wheel, elsewhere in a checkout
                total.update(f"{file.relative_to(PACKAGE).as_posix()} {file_digest(file)}\n".encode())
    return __version__, total.hexdigest()[:12]


def write_whole(path: Path, data: bytes) -> None:
    """Write a file that only its owner can read, in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.new")
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
    beside.replace(path)


def _refuse_shared(file: str, cells: list[Cell]) -> None:
    seen: dict[tuple, Cell] = {}
    for cell in cells:
        for name, place in cell.places.items():
            key = (name, os.path.realpath(in_project(place)))
            if place and key in seen:
                raise InputError(
                    f"{file}: cells {seen[key].name} and {cell.name} would both write their {name} to {place}; leave "
                    f"{name!r} out, and each cell gets a place of its own."
                )
            seen[key] = cell


# -- what is finished -------------------------------------------------------------------------------------------------


def recorded_outcome(sweep: Sweep, cell: Cell) -> dict | None:
    """What became of this very run of a cell earlier; None: it never ran, or with another notebook, input or version.

    A cell counts as finished only while its executed notebook is there and shows no error, and its results are as they
    were written; otherwise its status is ``changed``, and it runs again.
    """
    try:
        found = json.loads(cell.record.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict) or found.get("digest") != cell.digest:
        return None
    if found.get("status") in ("finished", "incomplete") and not _whole(sweep, cell, found):
        return found | {"status": "changed"}
    return found


def _whole(sweep: Sweep, cell: Cell, found: Mapping) -> bool:
    try:
        book = json.loads(sweep.executed(cell).read_text(encoding="utf-8"))
        outputs = [output for one in book["cells"] for output in one.get("outputs", [])]
        if any(output["output_type"] == "error" for output in outputs):
            return False
        return cell.results is None or file_digest(str(cell.results)) == found.get("results_sha256")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
