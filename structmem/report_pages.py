"""Pages of a report: the frame around each, tables as HTML, and the index that says what it was built from."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable
from urllib.parse import quote

from .missing import in_words
from .paths import package_file
from .tables import Table

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src 'self' file: data:; base-uri 'none'; form-action 'none'"
)
PAGES = {
    "index.html": ("Report", ""),
    "tables.html": ("Tables", "Rates with intervals and n, differences from the baseline, and what is missing."),
    "entries.html": ("Entries", "One entry at a time: memories, layouts side by side, answers, verdicts, reasoning."),
    "figures.html": ("Figures", "Every saved figure, in words too, with its data."),
    "reference.html": ("Reference", "The public functions of the package."),
}


def there(facts: dict) -> list[str]:
    """Pages that the report has."""
    absent = {"figures.html": not facts["figures"]["files"], "reference.html": not facts["reference"]}
    return [name for name in PAGES if not absent.get(name)]


def page(title: str, body: str, current: str = "", up: str = "", shown: Iterable[str] = ()) -> bytes:
    """One page in the report's frame: policy, style, and links to the pages of `shown`; `up` leads to their folder."""
    css = "".join(package_file("report", name).read_text(encoding="utf-8") for name in ("base.css", "report.css"))
    links, wide = [], ' class="wide"' if current == "tables.html" else ""
    for name, (words, _) in PAGES.items():
        if name in shown:
            here = ' aria-current="page"' if name == current else ""
            links.append(f'<a href="{up}{name}"{here}>{words}</a>')
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="robots" content="noindex">\n<title>{escaped(title)} · structmem</title>\n'
        f"<style>{css}{_code_css() if up else ''}</style>\n</head>\n"
        f"<body{wide}>\n"
        f'<nav class="top" aria-label="Report">{"".join(links)}</nav>\n<main>\n{body}\n</main>\n</body>\n</html>\n'
    ).encode("utf-8", "replace")


def escaped(text: object) -> str:
    """A text as HTML shows it, also within an attribute."""
    return html.escape(str(text))


def html_table(table: Table, title: str = "") -> str:
    """A table with its caption, header cells and notes, as HTML; numbers of notes stand in the first cell of a row."""
    marked = bool(table.notes) and table.header[-1] == "notes" and len(table.header) > 1
    header = table.header[:-1] if marked else table.header
    kinds = [_kind(table, place) for place in range(len(header))]
    head = "".join(f'<th scope="col"{c}>{_breakable(cell)}</th>' for cell, c in zip(header, kinds, strict=True))
    rows = []
    for row in table.cells:
        cells = [_breakable(cell) for cell in row[: len(header)]]
        if marked and row[-1]:
            cells[0] += f" <sup>{escaped(row[-1])}</sup>"
        rows.append("".join(f"<td{c}>{cell}</td>" for cell, c in zip(cells, kinds, strict=True)))
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    body = body or f'<tr><td colspan="{len(header)}">(no rows)</td></tr>'
    lines = [f"<strong>{escaped(title)}</strong>"] if title else []
    caption = "<br>".join([*lines, *map(escaped, table.caption.splitlines())])
    notes = "".join(f"<li>{escaped(note)}</li>" for note in table.notes)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escaped(title or "Table")}"><table>\n'
        f"<caption><div>{caption}</div></caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>\n"
        + (f'<ol class="notes">{notes}</ol>\n' if notes else "")
    )


def _kind(table: Table, place: int) -> str:
    if table.is_number(place):
        return ' class="number"'
    return ' class="text"' if any(len(row[place]) > 40 for row in table.cells) else ""


def _breakable(cell: str) -> str:
    """A cell whose lines may end after an underscore or a slash and before an interval, never within a number."""
    number, bracket, interval = cell.partition(" [")
    if bracket and interval.endswith("]"):
        return f"<span>{escaped(number)}</span> <span>[{escaped(interval)}</span>"
    return f"<span>{escaped(cell)}</span>" if cell[:1].isdigit() else re.sub("[_/]", r"\g<0><wbr>", escaped(cell))


def _code_css() -> str:
    from pygments.formatters import HtmlFormatter

    dark = HtmlFormatter(style="github-dark", nobackground=True).get_style_defs(".highlight")
    return HtmlFormatter(nobackground=True).get_style_defs(".highlight") + (
        f"\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}"
    )


# --- index ---


def index(facts: dict) -> bytes:
    """The first page: what there is to read, and what it was built from."""
    names = there(facts)
    cards = [f'<li><a href="{n}">{PAGES[n][0]}</a><p>{PAGES[n][1]}</p></li>' for n in names if n != "index.html"]
    books = [
        f'<li><a href="notebooks/{quote(one["page"])}">{escaped(one["title"])}</a>'
        f"<p>{escaped(' · '.join(filter(None, (one['where'], one['file'], one['state']))))}</p></li>"
        for one in facts["notebooks"]["files"]
    ]
    entries = facts["entries"]
    made = {
        "same": "as sent",
        "differs": "other than sent",
        "unchecked": "unchecked",
        "missing": "not rebuilt",
    }
    layouts = ", ".join(f"{entries['layouts'][k]} {w}" for k, w in made.items() if k in entries["layouts"])
    unknown = f" ({entries['unknown']} in no source: texts not shown)" if entries["unknown"] else ""
    private = (
        "Pages quote memories and answers: for you only (files of mode 600). Build with --no-texts to share the entry "
        "browser; notebooks and figures show what they printed."
        if facts["texts"]
        else "The entry browser leaves out texts; notebooks show what they printed."
    )
    built = {
        "Made": f"{facts['made_at']} by structmem {facts['structmem']}, Python {facts['python']}",
        "Entries": f"{entries['entries']}{unknown}, {entries['answers']} answers; contexts rebuilt: {layouts}",
        **{f"Entries from {name}": f"sha256 {digest[:16]}" for name, digest in entries["sources"].items()},
        **{f"Not read: {name}": why for name, why in entries["not_read"].items()},
        "Notebooks": f"{len(books)} ({facts['notebooks']['from']})",
        "Figures": str(len(facts["figures"]["files"])) if facts["figures"]["files"] else "none were there",
        "Reference": f"{facts['reference']} public names" if facts["reference"] else "left out",
        "Libraries": ", ".join(f"{name} {version}" for name, version in facts["packages"].items()),
    }
    body = (
        f'<h1>structmem report</h1>\n<p class="soft">{escaped(private)} No page loads anything from anywhere.</p>\n'
        f'<ul class="pages">{"".join(cards)}</ul>\n<h2>Notebooks</h2>\n<ul class="pages">{"".join(books)}</ul>\n'
        f"<h2>What it was built from</h2>\n{_facts(built)}\n"
        + "\n".join(_result_facts(one) for one in facts["results"])
        + '\n<p><a href="report.json">report.json</a>: the same for programs.</p>'
    )
    return page("Report", body, "index.html", shown=names)


def _facts(values: dict) -> str:
    return f'<dl class="facts">{"".join(f"<dt>{escaped(k)}</dt><dd>{escaped(v)}</dd>" for k, v in values.items())}</dl>'


def _result_facts(one: dict) -> str:
    """What is known of a results file; the whole manifest on request."""
    said = one["manifest"]
    shown = {"From": one["note"]} if one.get("note") else {}
    shown |= {"sha256": one.get("sha256", "several files")}
    if said is None:
        return f"<h3>{escaped(one['file'])}</h3>{_facts(shown | {'Manifest': 'none beside the file'})}"
    done = said.get("completeness") or {}
    lost = done.get("missing") or {}
    shown |= {
        "Written": f"{said.get('written_at')} by structmem {said.get('structmem')}, commit {said.get('commit')}",
        "Rows": f"{said.get('rows')} of {said.get('entries')} entries",
        "Missing": f"{done.get('n_missing', 'unknown')} rows{f' ({in_words(lost)})' if lost else ''}",
        "Stopped": said.get("stopped") or "no",
        "Changed since": "yes: the file is not the one that its manifest was written for" if one["changed"] else "no",
    }  # fmt: skip
    whole = escaped(json.dumps(said, indent=1, ensure_ascii=False, sort_keys=True))
    more = f"<details><summary>Whole manifest</summary><pre>{whole}</pre></details>"
    return f"<h3>{escaped(one['file'])}</h3>{_facts(shown)}{more}"
