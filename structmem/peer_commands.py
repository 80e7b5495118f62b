"""Commands that read and write other tools' results: import, export."""

from __future__ import annotations

import argparse


def add_commands(command) -> None:
    """Add these commands to the command line; `command(name, do, help)` makes a parser."""
    read = command("import", _import, "read results of Inspect or PersistBench, and show their rates beside ours")
    read.add_argument(
        "files", nargs="+", metavar="FILE", help="an Inspect log (.eval, .json) or PersistBench checkpoint"
    )
    read.add_argument("-o", dest="output", metavar="RESULTS", help="a new .parquet or .csv file (default: only show)")
    read.add_argument("--source", metavar="ENTRIES", help="own entries that the other tool was run on")
    read.add_argument(
        "--replicate", type=_count, default=0, metavar="N", help="1 for a second run of the same (default: 0)"
    )

    write = command("export", _export, "write one arm (all its models and failure types) as a PersistBench checkpoint")
    write.add_argument("results", help="results file, folder or pattern, with the answers")
    write.add_argument("checkpoint", metavar="CHECKPOINT.json", help="a new file")
    write.add_argument(
        "--where", metavar="COLUMN=VALUE", action="append", default=[],
        help="the one arm, repeatable, such as structure=dynamic, defence=standard, judge=persistbench, replicate=0",
    )  # fmt: skip
    write.add_argument("--source", metavar="ENTRIES", help="own entries, where the results are of such")


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a whole number from 0, got {text!r}")
    return int(text)


def _import(options) -> None:
    from pathlib import Path

    from .errors import InputError
    from .importing import import_results
    from .results import write_results

    if options.output and Path(options.output).exists():
        raise InputError(f"{options.output} is there already; name a new file (merge_results joins two).")
    found = import_results(options.files, options.source, options.replicate)
    print(found)
    if options.output:
        path = write_results(found.results, options.output, imported_from=found.sources)
        print(f"\n{len(found.results)} rows written to {path} (for you only: answers may quote memories).")


def _export(options) -> None:
    from .checkpoints import write_checkpoint
    from .errors import InputError

    where = {}
    for text in options.where:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InputError(f"--where takes COLUMN=VALUE, such as --where structure=flat, got {text!r}.")
        where[name] = value
    found = write_checkpoint(options.results, options.checkpoint, where, options.source)
    models = f"{found['models']} model{'s' * (found['models'] != 1)}"
    print(
        f"{found['path']}: {found['entries']} entries, {models}, {found['generations']} generations, "
        f"{found['scored']} of them scored (for you only: it quotes memories and answers).\n"
        "Its shape is that of a checkpoint that PersistBench wrote; PersistBench itself was not run on it."
    )
    if unwritten := found["unwritten"]:
        n, words = sum(unwritten.values()), ", ".join(f"{name} {n}" for name, n in sorted(unwritten.items()))
        print(
            f"{n} verdict{'s' * (n != 1)} gave no score that can be written ({words}). PersistBench counts such "
            "scores: where the original has them, its rates over this file will differ from those over the original."
        )
