"""One report: a folder of HTML from executed notebooks, results, figures, the entry browser and the reference."""

from __future__ import annotations

import hashlib
import html
import json
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from types import ModuleType
from urllib.parse import quote

import structmem

from .auditfiles import write_private
from .data import benchmark_hash, load_entries
from .entry_browser import write_entry_browser
from .errors import InputError, SetupError, StructmemError
from .manifest import manifest
from .missing import completeness
from .notebooks import read_notebook
from .outcomes import is_echo
from .paths import default_store, in_project, is_dir, is_file, package_file, recorded, root, shared
from .reading import rates
from .report_pages import PAGES, POLICY, escaped, html_table, index, page, there
from .results import read_results
from .stats import arm_summary, paired_differences
from .tables import show

MADE_BY = "structmem report"


def build_report(
    folder: str | Path = "report",
    *,
    results: str | Path | Sequence[str | Path] | None = None,
    runs: str | Path | Sequence[str | Path] | None = None,
    figures: str | Path | Sequence[str | Path] | None = None,
    sources: Sequence[str | Path] = ("persistbench", "examples"),
    stores: Sequence[object] | None = None,
    texts: bool = True,
    reference: bool = True,
) -> dict:
    """Build a folder of HTML pages that load nothing from anywhere: open its ``index.html``.

    Every file can be read by its owner only: pages quote memories and answers. The report says of each part what it was
    built from, and what was not there. An earlier report in the folder is replaced, in one step.

    Parameters
    ----------
    folder : str or Path
    results : path, pattern or several of them, optional
        Results files as in `read_results`; default: those in ``data/results``, else the recorded ones.
    runs : folder or several of them, optional
        Of executed notebooks, also a sweep's output folder: its cells are looked into. Default: ``runs``, else the
        notebooks as they are shipped, with their outputs.
    figures : folder or several of them, optional
        As `figures.save` fills it, or a sweep's output folder; default: ``figures``.
    sources : sequence of str or Path
        Where the entries are from, as in `load_entries`; a benchmark that is not installed is said, not fatal.
    stores : sequence, optional
        For answers and sortings that results do not hold; default: the default store where there is one, and the
        recorded calls. Only read.
    texts : bool
        False: no query, memory, answer or reasoning in the entry browser. Notebooks show what they printed.
    reference : bool
        Whether to build the pages of the reference, which takes some seconds.

    Returns
    -------
    dict
        What ``report.json`` holds: versions, date, and for each part what it was built from.

    Raises
    ------
    InputError
        A named source that is not there, or a folder that holds something else than a report.
    SetupError
        Without the ``report`` extra.
    """
    folder = Path(folder)
    _check_replaceable(folder)
    _library("nbconvert")
    if reference:
        _library("pdoc")
    table, files, note = _results(results)
    facts = {"made_by": MADE_BY, "made_at": datetime.now(UTC).isoformat(timespec="seconds"), "texts": texts}
    facts |= {name: value for name, value in manifest(table).items() if name in ("structmem", "python", "packages")}
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))  # readable by its owner only
    except OSError as error:
        raise InputError(f"{folder}: cannot be written ({error.strerror}).") from error
    try:
        facts["results"] = [_about_results(file) | ({"note": note} if note else {}) for file in files]
        facts["reference"] = _reference(building) if reference else 0
        facts["figures"] = _figures(building, figures, facts)
        facts["notebooks"] = _notebooks(building, runs, there(facts))
        facts["entries"] = _entries(building, table, sources, stores, texts, there(facts))
        _tables(building, table, facts)
        write_private(building / "index.html", index(facts))
        write_private(building / "report.json", json.dumps(facts, indent=1, ensure_ascii=False, default=str).encode())
        _put_in_place(building, folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return facts


def _library(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise SetupError(f"A report needs {error.name}: pip install 'structmem[report]'.") from None


def _check_replaceable(folder: Path) -> None:
    if not folder.exists() or (is_dir(folder) and not any(folder.iterdir())):
        return
    try:
        ours = json.loads((folder / "report.json").read_text(encoding="utf-8")).get("made_by") == MADE_BY
    except (OSError, ValueError, AttributeError):
        ours = False
    if not ours:
        raise InputError(f"{folder} is there already and holds no report, so it was left as it is; name another (-o).")


def _put_in_place(building: Path, folder: Path) -> None:
    if folder.exists():
        old = building.with_name(f"{building.name}.old")
        os.replace(folder, old)
        os.replace(building, folder)
        shutil.rmtree(old, ignore_errors=True)
    else:
        os.replace(building, folder)


# --- what it is built from ---


def _results(given) -> tuple:
    """The results table, the files it is from, and what has to be said of them."""
    note = ""
    if given is None:
        here = root() / "data" / "results"
        given = sorted([*here.glob("*.parquet"), *here.glob("*.csv")]) or "recorded"
        if given == "recorded":
            note = "recorded, shipped with structmem; none of your own were found in data/results"
            if sweep := next(iter(sorted((root() / "runs").glob("*/results.parquet"))), None):
                note += f", but in runs/{sweep.parent.name} (--results and --runs name it)"
    names, files = [given] if isinstance(given, (str, Path)) else list(given), []
    for name in names:
        if name == "recorded":
            files.append(recorded() / "results.csv")
            continue
        for place in (Path(name).expanduser(), in_project(name)):
            found = [place]
            if is_dir(place):
                found = sorted({*place.glob("*.parquet"), *place.glob("*.csv")} - {place / "sweep.csv"})
            if found and all(map(is_file, found)):
                break
        else:
            if is_dir(place):
                raise _nothing_in(name, place, ("*.parquet", "*.csv"))
            found = [name]  # a pattern: read_results finds its files, or says that there are none
        files += found
    return read_results(files), [Path(file) for file in files], note


def _nothing_in(name: object, place: Path, patterns: Sequence[str]) -> InputError:
    """What was looked for in a folder, and where below it such files are."""
    below = sorted({file.relative_to(place).parts[0] for p in patterns for file in place.glob(f"*/{p}")})
    hint = f"; there are such files in {', '.join(f'{name}/{one}' for one in below[:3])}" if below else ""
    return InputError(f"{name}: looked for {' and '.join(patterns)} there and found none{hint}.")


def _folders(given: str | Path | Sequence[str | Path]) -> list[tuple[object, Path]]:
    names = [given] if isinstance(given, (str, Path)) else list(given)
    return [(name, in_project(name)) for name in dict.fromkeys(names)]


def _about_results(file: Path) -> dict:
    """What the manifest beside a results file says, and the file's own hash."""
    facts = {"file": file.name}
    if is_file(file):
        facts["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
    try:
        said = json.loads(file.with_name(f"{file.name}.manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return facts | {"manifest": None}
    return facts | {"changed": said.get("file_sha256") != facts.get("sha256"), "manifest": said}


def _entries(folder: Path, table, sources: Iterable, stores: Sequence | None, texts: bool, shown: Sequence) -> dict:
    entries, used, absent = [], {}, {}
    for source in sources:
        try:
            entries += load_entries(source)
            used[Path(source).name] = benchmark_hash(source)
        except SetupError as error:
            absent[str(source)] = str(error)
    if stores is None:
        stores = [default_store()] if is_file(default_store()) else []
        stores += [recorded()] if any(recorded().glob("*.jsonl")) else []
    pages = {name: PAGES[name][0] for name in shown}
    found = write_entry_browser(table, entries, folder / "entries.html", stores=stores, texts=texts, pages=pages)
    return found | {"sources": used, "not_read": absent}


# --- tables ---


def _tables(folder: Path, results, facts: dict) -> None:
    parts = ["<h1>Tables</h1>"]
    by_echo = results["judge"].eq("echo")
    for rows in (results[~by_echo], results[by_echo]):
        if not len(rows):
            continue
        kind, more = ("Echo rates", " (overlap of words, not failures)") if is_echo(rows) else ("Failure rates", "")
        parts.append(f"<h2>{kind}{more}</h2>" + _by_type(rates, rows, kind))
        parts.append("<h2>Differences from the baseline</h2>" + _by_type(paired_differences, rows, "Differences"))
    parts.append("<h2>What became of every row asked for</h2>" + _by_type(arm_summary, results, "Rows"))
    parts.append(f'<h2>Completeness</h2><pre class="prose">{escaped(completeness(results))}</pre>')
    write_private(folder / "tables.html", page("Tables", "\n".join(parts), "tables.html", shown=there(facts)))


def _by_type(make: Callable, rows, title: str) -> str:
    """A table for each failure type; why, where it cannot be made."""
    parts = []
    for kind in dict.fromkeys(rows["failure_type"]):
        words = f"{title}: {kind or 'no failure type'}"
        try:
            parts.append(html_table(show(make(rows[rows["failure_type"] == kind])), words))
        except StructmemError as error:
            parts.append(f'<p class="missing">{escaped(words)} cannot be shown: {escaped(error)}</p>')
    return "\n".join(parts)


# --- notebooks ---


def _notebooks(folder: Path, runs: str | Path | Sequence[str | Path] | None, shown: Sequence[str]) -> dict:
    """The notebooks of folders and of the cells of sweeps, each on a page of its own."""
    places, found = _folders("runs" if runs is None else runs), {}
    patterns = ("*.ipynb", "cells/*/*.ipynb")
    for name, place in places:
        here = [file for p in patterns for file in sorted(place.glob(p)) if ".running-" not in file.name]
        if runs is not None and not here:
            raise _nothing_in(name, place, patterns)
        for file in here:
            parts = [place.name] if len(places) > 1 else []
            found[file] = "/".join([*parts, file.parent.name] if file.parent != place else parts)
    where = ", ".join(str(name) for name, _ in places)
    if not found:
        found = dict.fromkeys(sorted(shared("notebooks").glob("*.ipynb")), "")
        where = "as shipped, with the outputs they came with; none of your own were found in runs"
    pages: dict[Path, str] = {}
    for file, place in found.items():
        stem = "-".join(filter(None, (place.replace("/", "-"), file.stem)))
        same = f"{stem}.html".casefold() in {other.casefold() for other in pages.values()}
        pages[file] = f"{stem}.{len(pages)}.html" if same else f"{stem}.html"
    exporter = _library("nbconvert").HTMLExporter(template_name="basic")
    return {"from": where, "files": [_notebook(folder, file, found[file], pages, exporter, shown) for file in found]}


def _notebook(folder: Path, file: Path, where: str, pages: Mapping[Path, str], exporter, shown: Sequence[str]) -> dict:
    """One notebook as a page; what ran of it."""
    notebook = read_notebook(file)
    for cell in notebook.cells:  # nothing that would need a script
        for output in cell.get("outputs", []):
            for kind in [kind for kind in output.get("data", {}) if "javascript" in kind or "widget" in kind]:
                del output["data"][kind]
    code = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]
    errors = sum(output.output_type == "error" for cell in code for output in cell.outputs)
    waiting = sum(cell.execution_count is None for cell in code)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        body = exporter.from_notebook_node(notebook)[0]
    beside = {other.name: page for other, page in pages.items() if other.parent == file.parent}

    def link(found: re.Match) -> str:
        """Between notebooks, to the other's page; out of the folder there is nothing to link to."""
        target = html.unescape(found[1])
        if target.startswith(("#", "http://", "https://")):
            return found[0]
        name, _, part = target.rpartition("/")[2].partition("#")
        other = f"{quote(beside.get(name, ''))}{part and '#' + part}"
        return f'href="{escaped(other)}"' if name in beside else "data-left-out"

    body = re.sub(r'(?<=[\s"])href="([^"]*)"', link, body)
    title = next(
        (c.source.lstrip("# ").splitlines()[0] for c in notebook.cells if c.source.startswith("# ")), file.stem
    )
    state = "ran to its end" if not errors and not waiting else f"{errors} errors, {waiting} cells that did not run"
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    words = " · ".join(filter(None, (where, file.name, state, f"sha256 {digest[:12]}")))
    head = f'<p class="soft">{escaped(words)}</p>'
    write_private(folder / "notebooks" / pages[file], page(title, head + body, up="../", shown=shown))
    return {"file": file.name, "where": where, "page": pages[file], "title": title, "sha256": digest, "state": state}


# --- figures and reference ---


def _figures(folder: Path, figures: str | Path | Sequence[str | Path] | None, facts: dict) -> dict:
    places, found = _folders("figures" if figures is None else figures), {}
    for name, place in places:
        here = sorted(place.rglob("*.png")) if is_dir(place) else []
        if figures is not None and not here:
            raise InputError(f"{name}: no PNG there or below; expected a folder of saved figures, or a sweep's.")
        for png in here:
            parts = png.relative_to(place).with_suffix("").parts
            if parts[0] == "cells":  # of a sweep
                parts = (parts[1], *(part for part in parts[2:] if part != "figures"))
            stem = "/".join([place.name, *parts] if len(places) > 1 else parts)
            found[png] = f"{stem}-{len(found)}" if stem in found.values() else stem
    parts = ['<h1>Figures</h1>\n<div class="figures">']
    for png, stem in found.items():
        target = folder / "figures" / f"{stem}.png"
        links = []
        for kind in ("svg", "png", "pdf", "csv"):
            if is_file(file := png.with_suffix(f".{kind}")):
                write_private(target.with_suffix(f".{kind}"), file.read_bytes())
                links.append(f'<a href="figures/{quote(stem)}.{kind}">{kind.upper()}</a>')
        said = png.with_suffix(".txt")
        alt = said.read_text(encoding="utf-8", errors="replace").strip() if is_file(said) else ""
        shown = "svg" if is_file(png.with_suffix(".svg")) else "png"
        words = f"<details><summary>In words</summary><p>{escaped(alt)}</p></details>" if alt else ""
        parts.append(
            f'<figure id="{escaped(stem)}"><h2>{escaped(stem)}</h2>'
            f'<img src="figures/{quote(stem)}.{shown}" alt="{escaped(alt or "no description was saved")}"'
            ' loading="lazy">'
            f"<figcaption><p>{' · '.join(links)}</p>{words}</figcaption></figure>"
        )
    made = {"from": ", ".join(str(name) for name, _ in places), "files": list(found.values())}
    if found:
        body, shown = "\n".join([*parts, "</div>"]), there(facts | {"figures": made})
        write_private(folder / "figures.html", page("Figures", body, "figures.html", shown=shown))
    return made


def _reference(folder: Path) -> int:
    """One page of the public names, which are resolved here: documentation tools read what a module holds."""
    render, doc = _library("pdoc.render"), _library("pdoc.doc")
    public = ModuleType("structmem", structmem.__doc__)
    public.__all__ = list(structmem.__all__)
    for name in public.__all__:
        setattr(public, name, getattr(structmem, name))
    render.configure(docformat="numpy", show_source=False, search=False)
    module = doc.Module(public)
    text = render.html_module(module, {"structmem": module})
    dark = package_file("report", "reference.css").read_text(encoding="utf-8")
    policy = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    text = text.replace('<meta charset="utf-8">', f'<meta charset="utf-8">\n{policy}', 1)
    text = text.replace("</head>", f"<style>{dark}</style></head>", 1)
    text = re.sub(r"(<nav[^>]*>)", r'\1<p><a href="index.html">← Report</a></p>', text, count=1)
    write_private(folder / "reference.html", text.encode("utf-8", "replace"))
    return len(public.__all__)
