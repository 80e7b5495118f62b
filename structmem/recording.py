"""For maintainers: record the calls that committed notebooks replay, and refresh the notebooks' outputs."""

from __future__ import annotations

import sys
from functools import reduce

from .errors import InputError
from .paths import root

# Notebooks that ask models, and the results that each writes ('' for none).
ASKING = {
    "00_quickstart": "",
    "01_structures": "",
    "10_cross_domain": "cross_domain",
    "11_sycophancy": "sycophancy",
    "12_beneficial_and_rag": "beneficial",
    "13_controls": "",
    "14_layout": "",
    "15_taxonomies": "",
    "16_defences": "",
    "17_structurers": "",
    "25_ambiguity": "",
}


def record() -> None:
    """Run the asking notebooks live, then write ``data/recorded/calls.jsonl`` and ``results.csv`` (without answers).

    Calls go to ``data/record.sqlite``, so an interrupted recording goes on where it was; start with that file deleted
    when prompts or structures have changed, else calls that nothing asks for any more are written too.
    """
    from .columns import MAY_BE_DROPPED
    from .notebooks import run_notebook
    from .results import merge_results, read_results, write_results
    from .store import open_store

    store, folder = root() / "data" / "record.sqlite", root() / "data" / "recorded"
    tables = []
    for name, results in ASKING.items():
        print(name, file=sys.stderr, flush=True)
        given = {"store": str(store)}
        if results:
            tables.append(root() / "data" / "results" / "record" / f"{results}.parquet")
            tables[-1].unlink(missing_ok=True)
            given["results"] = str(tables[-1])
        run_notebook(name, given, root() / "runs" / f"record_{name}.ipynb")
    open_store(store, read_only=True).export(folder / "calls.jsonl")
    results = reduce(merge_results, map(read_results, tables))
    write_results(results.drop(columns=list(MAY_BE_DROPPED)), folder / "results.csv")


def refresh() -> None:
    """Execute every committed notebook with its own defaults and write its outputs back, without any time in them."""
    import nbclient
    import nbformat

    for path in sorted((root() / "notebooks").glob("*.ipynb")):
        print(path.name, file=sys.stderr, flush=True)
        notebook = nbformat.read(path, as_version=4)
        client = nbclient.NotebookClient(
            notebook, kernel_name="python3", record_timing=False, resources={"metadata": {"path": str(path.parent)}}
        )
        client.execute(cwd=str(path.parent))
        notebook.metadata["language_info"] = {"name": "python"}  # not the version of whoever ran it
        nbformat.write(notebook, path)


if __name__ == "__main__":
    steps = {"record": record, "refresh": refresh}
    if len(sys.argv) != 2 or sys.argv[1] not in steps:
        raise InputError(f"say one of {sorted(steps)}: python -m structmem.recording refresh")
    steps[sys.argv[1]]()
