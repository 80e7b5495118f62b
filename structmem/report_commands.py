"""The command that builds pages to read from results: report."""

from __future__ import annotations


def add_commands(command) -> None:
    """Add these commands to the command line; `command(name, do, help)` makes a parser."""
    report = command("report", _report, "build a folder of HTML from results, executed notebooks and figures")
    report.add_argument(
        "--results", nargs="+", action="extend", metavar="PATH",
        help="files, folders or patterns (default: data/results, else recorded)",
    )  # fmt: skip
    many = {"nargs": "+", "action": "extend", "metavar": "DIR"}
    report.add_argument("--runs", **many, help="executed notebooks, or a sweep (default: runs, else as shipped)")
    report.add_argument("--figures", **many, help="saved figures, or a sweep (default: figures)")
    report.add_argument(
        "--source", action="append", metavar="SOURCE",
        help="where the entries are from, repeatable (default: persistbench and examples)",
    )  # fmt: skip
    report.add_argument(
        "--store", action="append", metavar="PATH",
        help="where answers and sortings are looked for, repeatable (default: the default store and recorded calls)",
    )  # fmt: skip
    report.add_argument("--no-texts", action="store_true", help="no query, memory or answer in the entry browser")
    report.add_argument("--no-reference", action="store_true", help="leave out the reference of functions")
    report.add_argument("-o", dest="output", default="report", metavar="DIR", help="the report (default: report)")


def _report(options) -> None:
    from pathlib import Path

    from .reporting import build_report

    more = {"sources": options.source} if options.source else {}
    facts = build_report(
        options.output, results=options.results, runs=options.runs, figures=options.figures, stores=options.store,
        texts=not options.no_texts, reference=not options.no_reference, **more,
    )  # fmt: skip
    entries, layouts = facts["entries"], facts["entries"]["layouts"]
    lost = {
        "unchecked": "could not be checked (imported without a hash)", "missing": "could not be rebuilt",
        "differs": "are other than those sent",
    }  # fmt: skip
    words = [f"{layouts.get('same', 0)} layouts are the ones sent"]
    words += [f"{layouts[state]} {what}" for state, what in lost.items() if state in layouts]
    note = facts["results"][0].get("note", "")
    print(f"{Path(options.output) / 'index.html'}: open it in a browser; it loads nothing from anywhere.")
    print(f"Results: {', '.join(one['file'] for one in facts['results'])}{note and f' ({note})'}")
    print(f"Entries: {entries['entries']} with {entries['answers']} answers; {', '.join(words)}.")
    if entries["unknown"]:
        print(f"{entries['unknown']} of them are in no source, so their texts are not shown; --source names another.")
    for source, why in entries["not_read"].items():
        print(f"Not read: {source}: {why}")
    print(f"Notebooks: {len(facts['notebooks']['files'])} ({facts['notebooks']['from']})")
    print(f"Figures: {len(facts['figures']['files'])}")
    if facts["texts"]:
        print("The pages quote memories and answers: only you can read the files. --no-texts leaves them out.")
