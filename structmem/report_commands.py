"""The command that builds pages to read from results: report."""

from __future__ import annotations


def add_commands(command) -> None:
    """Add these commands to the command line; `command(name, do, help)` makes a parser."""
    report = command("report", _report, "build a folder of HTML from results, executed notebooks and figures")
    report.add_argument(
        "--results", nargs="+", metavar="PATH", help="files, folders or patterns (default: data/results, else recorded)"
    )
    report.add_argument("--runs", metavar="DIR", help="executed notebooks (default: runs, else as shipped)")
    report.add_argument("--figures", metavar="DIR", help="saved figures (default: figures)")
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
    lost = sum(count for state, count in layouts.items() if state != "same")
    print(f"{Path(options.output) / 'index.html'}: open it in a browser; it loads nothing from anywhere.")
    print(f"Results: {', '.join(one['file'] for one in facts['results'])}")
    print(
        f"Entries: {entries['entries']} with {entries['answers']} answers; {layouts.get('same', 0)} layouts are the "
        f"ones sent, {lost} could not be rebuilt or checked."
    )
    if entries["unknown"]:
        print(f"{entries['unknown']} of them are in no source, so their texts are not shown; --source names another.")
    for source, why in entries["not_read"].items():
        print(f"Not read: {source}: {why}")
    print(f"Notebooks: {len(facts['notebooks']['files'])} ({facts['notebooks']['from']})")
    print(f"Figures: {len(facts['figures']['files'])}")
    if facts["texts"]:
        print("The pages quote memories and answers: only you can read the files. --no-texts leaves them out.")
