"""The report: every page and link of the folder, what it says it was built from, and that it loads nothing."""

from __future__ import annotations

import json
import stat
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pandas as pd
import pytest

import structmem
from structmem.cli import main
from structmem.data import load_entries
from structmem.errors import InputError
from structmem.experiment import run
from structmem.report_pages import html_table
from structmem.reporting import MADE_BY, _results, build_report
from structmem.results import write_results
from structmem.tables import show
from tests.test_entry_browser import CHROMIUM, QUIET

pytest.importorskip("nbconvert", reason="the report extra is not installed")
pytest.importorskip("pdoc", reason="the report extra is not installed")

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154789c63f8ffff3f0005fe02fe"
    "0def46b80000000049454e44ae426082"
)
SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="30" height="20"><rect width="30" height="20"/></svg>'
NAMES = ["run", "rates", "Entry", "Memory"]  # in the reference; to write out all of them takes seconds
EVIL = "<img src=x onerror=window.hit=1>"


class Page(HTMLParser):
    """Elements of a page that lead elsewhere, its ids, and the cells of its tables."""

    def __init__(self, file: Path):
        super().__init__()
        self.links, self.loads, self.ids, self.alts, self.cells, self._cell = [], [], set(), [], [], None
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.ids |= {attrs[name] for name in ("id", "name") if attrs.get(name)}
        if tag == "a" and "href" in attrs:
            self.links.append(attrs["href"])
        elif tag == "img":
            self.alts.append(attrs.get("alt"))
        self.loads += [attrs[name] for name in ("src", "srcset", "data") if attrs.get(name)]
        if tag == "link":
            self.loads.append(attrs["href"])
        if tag in ("td", "th"):
            self._cell = ""

    def handle_data(self, data):
        if self._cell is not None:
            self._cell += data

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.cells.append(self._cell)
            self._cell = None


def answer(messages, request):
    return f"{EVIL} {3 if request.tags['structure'] == 'flat' else 1}"


def verdict(entry, response):
    return {"score": int(response[-1]), "reasoning": "as it says"}


answer.model_id, verdict.judge_id = "stub/model", "stub"


def notebook(file: Path, title: str, *outputs: dict, link: str = "") -> Path:
    v4 = nbformat.v4
    cell = v4.new_code_cell("1 + 1", outputs=[v4.new_output("display_data", data) for data in outputs])
    cell.execution_count = 1
    made = v4.new_notebook(cells=[v4.new_markdown_cell(f"# {title}\n\nProse <b>x</b> {link}"), cell])
    nbformat.write(made, file)
    return file


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project with results, two executed notebooks and two figures; and the report built of them."""
    folder = tmp_path_factory.mktemp("Prøject 1")
    entries = load_entries("examples", ["cross_domain", "beneficial_memory_usage"], limit=1)
    results = run(entries, [answer], ["flat", "fixed"], judge=verdict, store=":memory:", progress=False)
    write_results(results, folder / "data" / "results" / "stub.parquet")
    (folder / "data" / "recorded").mkdir()
    (runs := folder / "runs").mkdir()
    table = {"text/html": pd.DataFrame({"a": [EVIL]}).to_html(), "text/plain": EVIL}
    script = {"text/plain": "2", "application/javascript": "window.hit = 1"}
    links = "[other](20_second.ipynb#Second) [out](../x.md)"
    notebook(runs / "10_first.ipynb", "First: a < b", {"text/plain": EVIL}, table, script, link=links)
    notebook(runs / "20_second.ipynb", "Second")
    for stem in ("10_rates", "demo/11_other"):
        (file := folder / "figures" / f"{stem}.png").parent.mkdir(exist_ok=True)
        file.write_bytes(PNG)
    (folder / "figures" / "10_rates.svg").write_text(SVG)
    (folder / "figures" / "10_rates.txt").write_text('Points: rates, "flat" highest.\n')
    (folder / "figures" / "10_rates.csv").write_text("a\n1\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(structmem, "__all__", NAMES)
        facts = build_report("out", sources=["examples"], stores=[])
    return folder, facts, results


def pages(folder: Path) -> dict[Path, Page]:
    return {file: Page(file) for file in sorted((folder / "out").rglob("*.html"))}


def test_every_link_leads_somewhere_and_nothing_is_loaded_from_elsewhere(project):
    found = pages(project[0])
    assert {file.name for file in found} == {
        "index.html", "tables.html", "entries.html", "figures.html", "reference.html", "10_first.html",
        "20_second.html",
    }  # fmt: skip
    n = 0
    for file, page in found.items():
        assert "Content-Security-Policy" in file.read_text(encoding="utf-8")
        for link in [*page.links, *page.loads]:
            parts = urlsplit(link)
            if parts.scheme:  # a link to follow, or a picture that is within the page; nothing to load
                assert parts.scheme == "data" or link in page.links, link
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file.resolve()
            assert target.is_file(), (file.name, link)
            if parts.fragment and target.suffix == ".html":
                assert {parts.fragment, unquote(parts.fragment)} & found[target].ids, (file.name, link)
            n += 1
    assert n > 40
    links = found[project[0] / "out" / "notebooks" / "10_first.html"].links
    assert "20_second.html#Second" in links and not any("x.md" in link for link in links)


def test_all_files_are_the_owners_alone(project):
    files = [path for path in (project[0] / "out").rglob("*") if path.is_file()]
    assert len(files) > 10 and {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert stat.S_IMODE((project[0] / "out").stat().st_mode) == 0o700


def test_it_says_what_it_was_built_from(project):
    folder, facts, results = project
    assert json.loads((folder / "out" / "report.json").read_text()) == json.loads(json.dumps(facts))
    (file,) = facts["results"]
    assert file["sha256"] == sha256((folder / "data/results/stub.parquet").read_bytes()).hexdigest()
    assert file["manifest"]["rows"] == len(results) and file["changed"] is False
    assert facts["entries"]["entries"] == results["entry_id"].nunique() and facts["entries"]["answers"] == len(results)
    assert facts["entries"]["layouts"] == {"same": 2 * results["entry_id"].nunique()}
    assert [one["title"] for one in facts["notebooks"]["files"]] == ["First: a < b", "Second"]
    assert facts["figures"]["files"] == ["10_rates", "demo/11_other"]
    index = (folder / "out" / "index.html").read_text()
    for said in (structmem.__version__, file["sha256"], "First: a &lt; b", facts["made_at"], "0 rows"):
        assert said in index


def test_tables_hold_the_cells_of_show_with_notes_and_captions(project):
    folder, _, results = project
    cells = Page(folder / "out" / "tables.html").cells
    rows = results[results["failure_type"] == "cross_domain"]
    for table in (show(structmem.rates(rows)), show(structmem.paired_differences(rows))):
        header, body = table.header, table.cells
        if header[-1] == "notes":  # their numbers stand in the first cell
            header, body = header[:-1], [[f"{row[0]} {row[-1]}".strip(), *row[1:-1]] for row in body]
        flat = [*header, *(cell for row in body for cell in row)]
        assert any(cells[at : at + len(flat)] == flat for at in range(len(cells)))
    text = (folder / "out" / "tables.html").read_text()
    assert "<caption><div><strong>Failure rates: cross_domain</strong>" in text and "100.0 %" in text
    evil = html_table(show(pd.DataFrame({EVIL: [EVIL], "reason": [EVIL]})), EVIL)
    assert "<img" not in evil and evil.count("&lt;img") == 5
    noted = html_table(show(pd.DataFrame({"arm": ["a", "b_c"], "reason": ["", "why"]})))
    assert "<td>b_<wbr>c <sup>[1]</sup></td>" in noted and "<li>why</li>" in noted and ">notes<" not in noted


def test_figures_have_their_words_and_the_reference_has_its_names(project):
    out = project[0] / "out"
    assert Page(out / "figures.html").alts == ['Points: rates, "flat" highest.', "no description was saved"]
    assert (out / "figures" / "demo" / "11_other.png").read_bytes() == PNG
    assert project[1]["reference"] == len(NAMES) and set(NAMES) <= Page(out / "reference.html").ids


def test_a_report_is_replaced_and_nothing_else_is(project, monkeypatch, capsys):
    folder = project[0]
    monkeypatch.chdir(folder)
    (folder / "mine").mkdir()
    (folder / "mine" / "a.txt").write_text("mine")
    assert main(["report", "-o", "mine", "--no-reference"]) == 2
    assert "holds no report" in capsys.readouterr().err
    assert main(["report", "--results", "nowhere", "-o", "new"]) == 2
    assert "nothing at 'nowhere'" in capsys.readouterr().err
    assert main(["report", "--results", "data", "-o", "new"]) == 2
    assert "looked for *.parquet and *.csv there and found none; there are such files in data/results" in (
        capsys.readouterr().err
    )
    with pytest.raises(InputError, match="looked for .*ipynb"):
        build_report("new", runs="figures", sources=["examples"], reference=False)
    assert not (folder / "new").exists()
    command = ["report", "-o", "second", "--no-reference", "--source", "examples", "--no-texts", "--store", ":memory:"]
    (folder / "second").mkdir()
    (folder / "second" / "report.json").write_text(json.dumps({"made_by": MADE_BY}))
    (folder / "second" / "old.html").write_text("")
    monkeypatch.setattr("structmem.reporting._tables", lambda *_: None)  # as in the first
    for cell in ("k=1", "k=2"):  # a sweep's
        (there := folder / "sweep" / "cells" / cell / "figures").mkdir(parents=True)
        notebook(there.parent / "20_second.ipynb", "Second", link="[self](20_second.ipynb#Second)")
        (there / "10_rates.png").write_bytes(PNG)
    command += ["--runs", "runs", "--runs", "sweep", "--figures", "sweep"]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "second/index.html" in said and "Results: stub.parquet" in said and "only you" not in said
    assert not {"reference.html", "old.html"} & {path.name for path in (folder / "second").iterdir()}
    assert EVIL[:12] not in (folder / "second" / "entries.html").read_text()
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]
    facts = json.loads((folder / "second" / "report.json").read_text())
    assert [(one["where"], one["page"]) for one in facts["notebooks"]["files"]] == [
        ("runs", "runs-10_first.html"), ("runs", "runs-20_second.html"),
        ("sweep/k=1", "sweep-k=1-20_second.html"), ("sweep/k=2", "sweep-k=2-20_second.html"),
    ]  # fmt: skip
    assert facts["figures"]["files"] == ["k=1/10_rates", "k=2/10_rates"]
    there = {file: Page(file) for file in (folder / "second").rglob("*.html")}
    for file, page in there.items():
        for link in [*page.links, *page.loads]:
            path = unquote(urlsplit(link).path)
            assert urlsplit(link).scheme or path == "tables.html" or (file.parent / path).exists() or (
                path == "../tables.html"
            ), (file.name, link)  # fmt: skip
        assert "figures.html" in {link.removeprefix("../") for link in page.links} or file.name == "entries.html"


def test_results_that_are_not_ones_own_are_said_to_be_recorded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "none of your own were found in data/results" in _results(None)[2]
    (tmp_path / "runs" / "ten").mkdir(parents=True)
    (tmp_path / "runs" / "ten" / "results.parquet").touch()
    assert "but in runs/ten" in _results(None)[2]
    assert _results("recorded")[2] == ""


def test_layouts_that_are_not_the_ones_sent_are_counted_by_what_is_known(project, monkeypatch, capsys):
    entries = project[1]["entries"] | {"layouts": {"same": 3, "unchecked": 2, "missing": 1}}
    monkeypatch.setattr("structmem.reporting.build_report", lambda *_, **__: project[1] | {"entries": entries})
    assert main(["report"]) == 0
    assert (
        "3 layouts are the ones sent, 2 could not be checked (imported without a hash), 1 could not be rebuilt."
        in capsys.readouterr().out
    )


def test_pages_show_in_a_browser_without_a_request_or_a_complaint(project):
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not CHROMIUM.exists():
        pytest.skip(f"there is no browser at {CHROMIUM}")
    seen = []
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=str(CHROMIUM), args=QUIET)
        page = browser.new_context(offline=True, viewport={"width": 375, "height": 700}).new_page()
        page.on("request", lambda request: seen.append(urlsplit(request.url).scheme))
        page.on("console", lambda said: seen.append(said.text))
        page.on("pageerror", lambda error: seen.append(str(error)))
        out = project[0] / "out"
        for file in (
            out / "index.html",
            out / "tables.html",
            out / "notebooks" / "10_first.html",
            out / "figures.html",
        ):
            page.goto(file.as_uri())
            assert page.evaluate("window.hit") is None and page.locator("img[src=x]").count() == 0
            assert page.evaluate("document.documentElement.scrollWidth") == 375, file.name
        assert page.evaluate("document.images[0].decode().then(() => document.images[0].naturalWidth)") == 30
        page.get_by_role("link", name="Entries").click()
        page.wait_for_selector("#list a")
        page.get_by_role("link", name="Report", exact=True).click()
        page.wait_for_selector("h1:has-text('structmem report')")
        browser.close()
    assert set(seen) == {"file"}
