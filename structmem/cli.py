"""The command line, thin: arguments in, one call, one sentence per error (exit status 2; 130 after Ctrl-C)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from . import __version__, memory_commands, peer_commands, report_commands, sweep_commands
from .errors import InputError, StructmemError, choice

STRUCTURER = "embedding or embedding:multilingual (offline), embedding:MODEL, or a litellm model id"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    options = _parser().parse_args(arguments)
    _plain_warnings()
    try:
        status = options.do(options) or 0
        if sys.stdout is not None:
            sys.stdout.flush()  # a full disk or a closed pipe shows here, not while Python ends
        return status
    except StructmemError as error:
        print(f"structmem: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstructmem: interrupted; finished calls are kept, the same command goes on from there", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        sys.stderr.close()
        return 0
    except OSError as error:  # what no module foresaw: a full disk, a folder that cannot be written
        place = f" {error.filename}" if error.filename else ""
        print(
            f"structmem: the system refused{place}: {error.strerror or error}; finished calls are kept", file=sys.stderr
        )
        _drop_unwritten()
        return 2


def _drop_unwritten() -> None:
    """Send what standard output could not take nowhere: Python would try it again, and complain, while it ends."""
    import os

    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="structmem", description="Measure what the layout of stored memories changes in a model's answers."
    )
    parser.add_argument("--version", action="version", version=f"structmem {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(name: str, do, help: str, under=commands) -> argparse.ArgumentParser:
        found = under.add_parser(name, help=help, description=help[0].upper() + help[1:] + ".")
        found.set_defaults(do=do)
        return found

    def group(name: str, help: str):
        return commands.add_parser(name, help=help).add_subparsers(title="commands", metavar="COMMAND", required=True)

    demo = command("demo", _demo, "run the experiment in small on the built-in model")
    demo.add_argument("--limit", type=_count, default=4, help="entries per failure type; 0 runs all (default: 4)")

    run = command("run", _run, "run a notebook with parameters and keep the executed copy")
    run.add_argument("notebook", help="path, name or number, such as 10_cross_domain or 10")
    run.add_argument("-p", dest="parameters", metavar="NAME=VALUE", action="append", default=[], help="repeatable")
    run.add_argument("-o", dest="output", help="the executed copy (default: runs/NAME.ipynb)")

    layout = command("structure", _structure, "lay out memories and print the context")
    layout.add_argument("file", help="a text, a JSON list, or an export of a memory store; - reads standard input")
    layout.add_argument("--user", help="whose memories, where the file holds those of several")
    layout.add_argument(
        "--on", metavar="DATE", help="the day on which facts must hold, such as 2026-03-31 (default: today)"
    )
    layout.add_argument("--structure", default="tree", help="flat, fixed, dynamic, tree, rag, … (default: tree)")
    layout.add_argument("--structurer", default="embedding", help=STRUCTURER)
    layout.add_argument("--renderer", default="markdown", help="markdown, bullets, xml, inline (default: markdown)")
    layout.add_argument("--taxonomy", default="life11", help="a name or a YAML file (default: life11)")
    layout.add_argument("--query", help="the question, for structures that depend on it (rag, gated, self_check)")

    study = command("study", _study, "plan, price and run the experiment on a hosted or local model")
    study.add_argument("model", help="a litellm model id, such as openai/gpt-4o-mini, or local/smollm2")
    study.add_argument("limit", type=_count, help="entries per failure type; 0 runs all")
    study.add_argument("--judge", default="persistbench", help="persistbench, echo, or a judge file")
    study.add_argument("--judge-model", help="a litellm model id (default: the paper's judge)")
    study.add_argument("--structurer", default="embedding", help=STRUCTURER)
    study.add_argument(
        "--system-prompt", default="short", help="short (ours), persistbench, or a file (default: short)"
    )
    study.add_argument("--temperature", type=float, default=1.0, help="of the answers (default: 1.0)")
    study.add_argument("--max-tokens", type=_count, help="longest answer, in tokens")
    study.add_argument("--budget", type=float, metavar="USD", help="stop cleanly before this run has spent it")
    study.add_argument("--allow-unpriced", action="store_true", help="with a budget: go on where a price is not known")
    study.add_argument(
        "--concurrency", type=_at_least_one, metavar="N", help="most calls at once for a model (default: 64)"
    )
    study.add_argument("--timeout", type=_seconds, default=120, metavar="S", help="seconds for a call (default: 120)")
    study.add_argument("--results", metavar="DIR", help="results folder (default: data/results/study)")
    study.add_argument("--yes", action="store_true", help="do not ask")

    check = command("check", _check, "check executed notebooks and results files")
    check.add_argument("paths", nargs="+", metavar="PATH", help="notebook, results file, or a folder of them")

    ping = command("ping", _ping, "check that a model can be called, with one small request")
    ping.add_argument("model", help="a litellm model id, or local/smollm2")
    ping.add_argument("--api-base", metavar="URL", help="the address of your own server, such as http://HOST:PORT/v1")

    local = group("local", "the built-in model")
    command("install", _local_install, "install the built-in model and the benchmark's data files", local)
    command("status", _local_status, "what is present of the built-in model, and one test reply", local)

    audit = group("audit", "let a person check the judge")
    sheet = command("export", _audit_export, "write a blinded sheet of sampled answers, and its key", audit)
    sheet.add_argument("results", help="results file, folder or pattern, with the answers")
    sheet.add_argument("sheet", metavar="SHEET.csv", help="a new file; SHEET.key.json is written beside it")
    sheet.add_argument("--source", default="persistbench", help="where the entries are from (default: persistbench)")
    sheet.add_argument("--n", type=_at_least_one, default=200, help="answers in the sheet (default: 200)")
    sheet.add_argument("--seed", type=_count, default=0, help="another seed, another sample (default: 0)")
    sheet.add_argument("--by", action="append", metavar="COLUMN", help="what makes an arm, repeatable (default: all)")
    scored = command("import", _audit_import, "read a scored sheet and say how accurate the judge is", audit)
    scored.add_argument("sheet", metavar="SHEET.csv")
    scored.add_argument("key", metavar="KEY", help="the .key.json that was written with the sheet")
    scored.add_argument("--results", required=True, help="the results that were sampled")
    scored.add_argument("-o", dest="output", metavar="FILE.csv", help="a new file for the person's and judge's scores")

    notebooks = group("notebooks", "the shipped notebooks")
    copy = command("copy", _copy, "copy the notebooks and the recorded calls into a folder", notebooks)
    copy.add_argument("folder", metavar="DIR")
    copy.add_argument("--force", action="store_true", help="replace files that differ from the shipped ones")

    store = group("store", "the store of calls")
    info = command("info", _store_info, "count what a store holds", store)
    export = command("export", _store_export, "write calls as JSON lines, without request texts", store)
    export.add_argument("output", metavar="FILE.jsonl")
    merge = command("merge", _store_merge, "add the calls of other stores, or of recorded calls, to a store", store)
    merge.add_argument(
        "sources", nargs="+", metavar="OTHER", help="a store, a .jsonl file or a folder of them; only read"
    )
    prune = command("prune", _store_prune, "delete failures and request texts that no call needs", store)
    prune.add_argument(
        "--before", metavar="DATE", help="only what was called before this day, such as 2026-03-31 (UTC)"
    )
    prune.add_argument("--role", help="only calls of this role, such as judge")
    prune.add_argument("--model", help="only calls of this model")
    prune.add_argument("--dry-run", action="store_true", help="only say what would go")
    prune.add_argument("--finished", action="store_true", help="finished calls too, which are paid for; asks again")
    prune.add_argument("--yes-delete-finished", action="store_true", help="do not ask again")
    for each in (info, export, merge, prune):
        each.add_argument("--store", help="default: STRUCTMEM_STORE, else data/store.sqlite in the project")
    for module in (memory_commands, peer_commands, sweep_commands, report_commands):
        module.add_commands(command)
    return parser


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, got {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number of seconds above 0, got {text!r}")
    return value


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a whole number from 0, got {text!r}")
    return int(text)


def _plain_warnings() -> None:
    import warnings

    def show(message, category, filename, lineno, file=None, line=None) -> None:
        print(f"warning: {message}", file=sys.stderr)

    if not sys.warnoptions:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UserWarning)
    warnings.showwarning = show


def _demo(options) -> None:
    from .studies import demo

    demo(options.limit, lambda line: print(line, flush=True))


def _run(options) -> None:
    from .notebooks import run_notebook

    parameters = {}
    for text in options.parameters:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InputError(f"-p takes NAME=VALUE, such as -p limit=5, got {text!r}.")
        parameters[name] = value
    print(run_notebook(options.notebook, parameters, options.output))


def _structure(options) -> None:
    from .memoryfiles import load_memories
    from .renderers import RENDERERS, render
    from .structures import structure

    if options.renderer not in RENDERERS:  # before a model is asked and paid
        raise choice("renderer", options.renderer, RENDERERS)
    memories = load_memories(options.file, user=options.user, on=options.on)
    node = structure(
        memories, options.structure, query=options.query, taxonomy=options.taxonomy, structurer=options.structurer
    )
    print(render(node, options.renderer))


def _study(options) -> int:
    from .studies import study

    def confirm(question: str) -> bool:
        if options.yes:
            return True
        if not sys.stdin.isatty():
            raise InputError("standard input is no terminal, so nobody can confirm the run; add --yes.")
        return _confirmed(question)

    return study(
        options.model, options.limit, judge=options.judge, judge_model=options.judge_model,
        structurer=options.structurer, system_prompt=options.system_prompt, temperature=options.temperature,
        max_tokens=options.max_tokens, budget_usd=options.budget, allow_unpriced=options.allow_unpriced,
        max_concurrency=options.concurrency, timeout_s=options.timeout, folder=options.results, confirm=confirm,
    )[1]  # fmt: skip


def _check(options) -> int:
    from .notebooks import check_run

    bad = 0
    for path in options.paths:
        problems = check_run(path)
        bad += len(problems)
        counted = f"{len(problems)} problem{'s' * (len(problems) != 1)}"
        print(f"{path}: {counted if problems else 'fine'}")
        for problem in problems:
            print(f"  {problem}")
    return 1 if bad else 0


def _ping(options) -> int:
    from .connection import check_connection

    found = check_connection(options.model, {"api_base": options.api_base} if options.api_base else None)
    print("\n".join(found.lines()))
    return 0 if found.ok else 1


def _local_install(options) -> int:
    import subprocess
    from importlib.util import find_spec

    from .errors import SetupError
    from .local import install_command

    if find_spec("pip") is None:
        command = " ".join(install_command()[3:])
        raise SetupError(f"This environment has no pip; use its own installer, for example: uv pip {command}")
    return subprocess.run(install_command()).returncode


def _local_status(options) -> int:
    from .local import status

    rows = status()
    for name, finding in rows:
        print(f"{name:<14}{finding}")
    return 1 if any(finding.startswith("missing") for _, finding in rows) else 0


def _copy(options) -> None:
    from .notebooks import copy_notebooks

    copied, kept = copy_notebooks(options.folder, options.force)
    print(f"{len(copied)} files copied to {options.folder}.")
    for path in kept:
        print(f"kept {path}: it differs from the shipped one (--force replaces it)")


def _audit_export(options) -> None:
    from .audit import audit_export
    from .data import load_entries
    from .results import read_results

    sheet, key = audit_export(
        read_results(options.results), load_entries(options.source), options.sheet, n=options.n, seed=options.seed,
        by=options.by,
    )  # fmt: skip
    print(f"{sheet}: answers to score, in the column 'score' (for you only: it quotes memories and answers).")
    print(f"{key}: what the sheet hides; keep it from the person who scores, and for the import.")


def _audit_import(options) -> None:
    from .audit import accuracy_report

    print(accuracy_report(options.sheet, options.key, options.results, options.output))


def _store(options, read_only: bool = True):
    from .paths import default_store
    from .store import open_store

    return open_store(options.store or default_store(), read_only=read_only)


def _store_info(options) -> None:
    store = _store(options)
    for name, value in store.info().items():
        if isinstance(value, dict):
            value = ", ".join(f"{count} {what}" for what, count in value.items()) or "none"
        print(f"{name:<16}{value}")
    store.close()


def _store_export(options) -> None:
    store = _store(options)
    if not hasattr(store, "export"):
        raise InputError(f"{store.path} holds recorded calls, which are JSON lines already; copy its files.")
    print(
        f"{store.export(options.output)} calls written to {options.output} (for you only: answers may quote memories)."
    )
    store.close()


def _store_merge(options) -> None:
    from .paths import default_store
    from .upkeep import merge

    into = options.store or default_store()
    for found in merge(into, options.sources):
        differing = f" ({found.differing} with another reply there; ours stays)" if found.differing else ""
        print(
            f"{found.source}: {found.added} finished calls and {found.failures} failures added, "
            f"{found.known} finished calls were here already{differing}"
        )


def _store_prune(options) -> int:
    from .paths import default_store
    from .upkeep import Pruned, prune

    def say(goes: Pruned, verb: str) -> None:
        for what, counts in (("failures", goes.failures), ("finished calls", goes.finished)):
            detail = ", ".join(f"{number} {name}" for name, number in counts.items())
            if detail or what == "failures":
                print(f"{verb} {sum(counts.values())} {what}{f': {detail}' if detail else ''}.")

    def confirm(goes: Pruned) -> bool:
        say(goes, "To be deleted:")
        if options.yes_delete_finished:
            return True
        if not sys.stdin.isatty():
            raise InputError("nobody is there to confirm that finished calls go; add --yes-delete-finished.")
        return _confirmed("Finished calls are paid for. Delete them?")

    store = options.store or default_store()
    pruned = prune(
        store, before=options.before, role=options.role, model=options.model, finished=options.finished,
        confirm=confirm, dry_run=options.dry_run,
    )  # fmt: skip
    if not pruned.done:
        if not options.dry_run:
            print("Nothing was deleted.")
            return 1
        say(pruned, "Would delete")
        return 0
    say(pruned, "Deleted")
    print(
        f"{pruned.texts} request texts that no call needs went with them; the file is {pruned.bytes:,} bytes smaller."
    )
    return 0


def _confirmed(question: str) -> bool:
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:  # Ctrl-D
        return False
