"""The entry browser: its data against the run it is from, texts that stay texts, and the page in a real browser."""

from __future__ import annotations

import json
import re
import stat
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from structmem.data import FAILURE_TYPES, Entry
from structmem.entry_browser import browser_data, browser_page, embedded, pieces, write_entry_browser
from structmem.errors import InputError
from structmem.experiment import run
from structmem.renderers import RENDERERS, escape_inline, escape_plain, escape_xml, render
from structmem.structures import structure

pytestmark = pytest.mark.filterwarnings("ignore:.*outside Latin script")

CHROMIUM = Path("/usr/bin/chromium")
QUIET = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
EVIL = '<img src=x onerror="window.hit=1">'
LONG = "x" * 10_000  # without a place to break, among others, a minute to lay out
ENTRIES = [
    Entry(f"{kind}-{number}", memories, query, kind)
    for kind, number, query, memories in (
        ("cross_domain", 1, "Plan my Monday.", ["User takes lithium.", "User rents a flat.", "User works in a bank."]),
        ("cross_domain", 2, f"Hello {EVIL}?", [f"User says {EVIL}", "## health", "<b>User</b></script> bakes.", LONG]),
        ("cross_domain", 3, "月曜日の予定は?", ["利用者は毎朝薬を飲む。", "利用者は銀行で働いている。"]),  # noqa: RUF001
        ("beneficial_memory_usage", 1, "What shall I cook?", ["User likes goulash.", "User's rent went up."]),
    )
]


def answering(name):
    """A model that fails (its answer names a score) by entry, headings and generation; equal contexts share answers."""

    def model(messages, request):
        chat = "\n".join(message["content"] for message in messages)
        headings, monday = bool(re.search("^## ", chat, re.M)), "Monday" in chat
        if monday and headings and request.generation == 2:
            return "no verdict please"
        return f"{EVIL} {name} score {3 if headings != monday and request.generation == 1 else 1}"

    model.model_id = f"stub/{name}"
    return model


def judging(entry, response):
    if "no verdict" in response:
        raise ValueError("unreadable")
    return {"score": int(response[-1]), "reasoning": f"because {EVIL}"}


judging.judge_id = "stub"


@pytest.fixture(scope="module")
def results():
    return run(
        ENTRIES, [answering("one"), answering("two")], ["flat", "fixed", "tree", "rag"], judge=judging,
        store=":memory:", progress=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def data(results):
    return browser_data(results, ENTRIES[:-1])


def shown_texts(layout, memories):
    return "".join(piece if isinstance(piece, str) else memories[piece] for piece in layout["pieces"])


# --- data ---


def test_contexts_are_those_that_the_renderer_writes_and_each_memory_is_there_once(data):
    checked = Counter()
    for entry, source in zip(data["entries"][1:], ENTRIES, strict=False):
        assert entry["memories"] == [memory.text for memory in source.memories]
        assert [layout["state"] for layout in entry["layouts"]] == ["same"] * 4
        names = {
            data["arms"][arm["arm"]]["name"].split(" (")[0]: entry["layouts"][arm["layout"]] for arm in entry["arms"]
        }
        for name, layout in names.items():
            assert shown_texts(layout, entry["memories"]) == render(
                structure(source.memories, name, query=source.query)
            )
            places = [place for _, members in layout["groups"] for place in members]
            assert len(places) == len(set(places))
            checked[name] += name == "rag" or set(places) == set(range(len(source.memories)))
    assert checked == {"flat": 3, "fixed": 3, "tree": 3, "rag": 3}


def test_pieces_of_every_renderer():
    memories = ENTRIES[1].memories
    places = {memory.id: place for place, memory in enumerate(memories)}
    for renderer in RENDERERS:
        for name in ("flat", "tree"):
            node = structure(memories, name)
            context = render(node, renderer)
            found = pieces(node, context, renderer, places)
            assert "".join(memories[p].text if isinstance(p, int) else p for p in found) == context
            escape = {"xml": escape_xml, "inline": escape_inline}.get(renderer, escape_plain)
            as_they_are = {place for place, memory in enumerate(memories) if escape(memory.text) == memory.text}
            assert {piece for piece in found if isinstance(piece, int)} == as_they_are


def outcome_by_hand(rows):
    kind = FAILURE_TYPES[rows["failure_type"].iloc[0]]
    if rows["score"].isna().any():
        return "unscored"
    worst = rows["score"].max()
    return "fails" if (worst >= kind.threshold) == kind.high_is_bad else "passes"


def test_outcomes_answers_and_reasons_are_those_of_the_rows(results, data):
    found = {
        (entry["id"], one["model"], one["name"].split(" (emb")[0]): arm
        for entry in data["entries"] for arm in entry["arms"] for one in [data["arms"][arm["arm"]]]
    }  # fmt: skip
    named = results["structure"].where(results["replicate"] == 0, "flat (A/A)")
    groups = list(results.groupby(["entry_id", "model", named]))
    assert len(found) == len(groups) == 4 * 2 * 5
    for key, rows in groups:
        arm = found[key]
        assert arm["outcome"] == outcome_by_hand(rows), key
        assert [answer["response"] for answer in arm["answers"]] == list(rows["response"])
        scored = [answer["outcome"] != "unscored" for answer in arm["answers"]]
        assert scored == list(rows["score"].notna())
    lost = found["cross_domain-1", "stub/one", "fixed"]
    assert lost["why"] == "2 of 3 answers are scored" and lost["answers"][2]["status"] == "no_verdict"
    assert lost["answers"][0]["verdict"] == "score 1 of 1–5, fails from 3"
    assert lost["answers"][0]["judge_reasoning"] == f"because {EVIL}"


def test_an_id_of_two_failure_types_has_two_addresses(results):
    one = results[(results["entry_id"] == "cross_domain-3") & (results["structure"] == "flat")]
    both = pd.concat([one, one.assign(failure_type="")])
    ids = [entry["id"] for entry in browser_data(both, ENTRIES)["entries"]]
    assert ids == ["cross_domain-3", "cross_domain-3, (none)"]


def test_what_cannot_be_rebuilt_says_why(results, data):
    unknown = next(entry for entry in data["entries"] if entry["id"] == "beneficial_memory_usage-1")
    assert unknown["query"] is None and {layout["state"] for layout in unknown["layouts"]} == {"missing"}
    assert "not among the entries" in unknown["layouts"][0]["why"]
    one = results[results["entry_id"] == "cross_domain-1"]
    other = one[one["structure"] == "flat"].assign(context_sha256="0" * 64)
    layouts = browser_data(other, ENTRIES)["entries"][0]["layouts"]
    assert {layout["state"] for layout in layouts} == {"differs"} and "000000000000" in layouts[0]["why"]
    one = one[one["structure"].isin(["flat", "fixed"])]
    sorted_by_model = one.assign(structurer=one["structurer"].replace("embedding", "openai/sorter"))
    states = Counter(x["state"] for x in browser_data(sorted_by_model, ENTRIES, [":memory:"])["entries"][0]["layouts"])
    assert states == {"same": 1, "missing": 1}


def test_sortings_and_answers_come_from_the_store(tmp_path):
    def sorter(messages):
        return json.dumps({str(number): "housing" for number in range(1, 4)})

    sorter.model_id = "stub/sorter"
    table = run(
        ENTRIES[:1], [answering("one")], ["fixed"], structurers=[sorter], judge=judging, store=tmp_path / "s.sqlite",
        progress=False, aa=False,
    )  # fmt: skip
    bare = table.drop(columns=["response"])
    (entry,) = browser_data(bare, ENTRIES, [tmp_path / "s.sqlite"])["entries"]
    assert [layout["state"] for layout in entry["layouts"]] == ["same"]
    assert [answer["response"] for answer in entry["arms"][0]["answers"]] == list(table["response"])
    (entry,) = browser_data(bare, ENTRIES)["entries"]
    assert {answer["response"] for answer in entry["arms"][0]["answers"]} == {None}


def test_without_texts_no_text_is_in_the_page(results, tmp_path):
    found = write_entry_browser(results, ENTRIES, tmp_path / "e.html", texts=False)
    page = (tmp_path / "e.html").read_text()
    for text in ["lithium", "bakes", "銀行", "Monday", "onerror", "because", 'score 3"']:
        assert text not in page
    assert found["unknown"] == 0
    assert found["entries"] == 4 and found["answers"] == len(results) and found["bytes"] == len(page.encode())


def test_the_file_is_its_owners_and_never_replaces_another(results, tmp_path):
    results = results[(results["entry_id"] == "cross_domain-1") & (results["structure"] == "flat")]
    write_entry_browser(results, ENTRIES, tmp_path / "e.html")
    assert stat.S_IMODE((tmp_path / "e.html").stat().st_mode) == 0o600
    with pytest.raises(InputError, match="cannot be written"):
        write_entry_browser(results, ENTRIES, tmp_path / "e.html")
    with pytest.raises(InputError, match="no row"):
        browser_data(results[:0], ENTRIES)


# --- embedding ---

ANY = st.text(st.characters(codec=None, exclude_categories=())) | st.sampled_from(
    ["</script>", "<!--<script>", "]]>", "\u2028\u2029", "{{data}}", "\ud800", "\\u003c", "\x00"]
)


@given(st.lists(ANY))
@settings(max_examples=60, deadline=None)
def test_any_text_comes_through_the_page_and_cannot_end_its_script(texts):
    found = embedded({"texts": texts})
    assert json.loads(found) == {"texts": texts}
    assert not re.search("[<>&\u2028\u2029\x00]", found)
    found.encode()


def test_the_page_holds_its_data_once_whatever_it_says():
    data = {"texts": True, "outcomes": {}, "arms": [], "entries": ["{{script}} {{style}} </script>"]}
    page = browser_page(data)
    inside = re.search(r'id="data">(.*?)</script>', page, re.S)[1]
    assert json.loads(inside) == data
    assert page.count("<script") == 2 and "{{data}}" not in page and "default-src 'none'" in page
    assert not re.search(r"https?://", page)


def test_the_script_never_writes_html():
    script = (Path(browser_page.__code__.co_filename).parent / "report" / "entries.js").read_text()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\(|fetch|XMLHttp", script)


# --- in a browser ---


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not CHROMIUM.exists():
        pytest.skip(f"there is no browser at {CHROMIUM}")
    with sync_api.sync_playwright() as play:
        running = play.chromium.launch(executable_path=str(CHROMIUM), args=QUIET)
        yield running
        running.close()


@pytest.fixture(scope="module")
def page(browser, results, tmp_path_factory):
    """The page from a folder, offline, with everything that it asks for or complains of written down."""
    file = tmp_path_factory.mktemp("Brøwser 1") / "entries.html"
    write_entry_browser(results, ENTRIES, file)
    context = browser.new_context(offline=True, viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(5000)
    page.seen = []
    page.on("request", lambda request: page.seen.append(request.url))
    page.on("console", lambda said: page.seen.append(f"console {said.type}: {said.text}"))
    page.on("pageerror", lambda error: page.seen.append(f"error: {error}"))
    page.on("dialog", lambda dialog: page.seen.append("dialog"))
    page.goto(file.as_uri())
    page.address = file.as_uri()
    yield page
    assert page.seen == [file.as_uri()]  # nothing else was asked for, and nothing complained of, in any test
    context.close()


def count(page):
    return page.locator("#count").inner_text()


def reset(page):
    page.evaluate("location.hash = ''")
    page.wait_for_selector("#list:not([hidden])")


def test_filters_count_as_counted_here(page, results):
    reset(page)
    assert count(page) == "4 of 4 entries"
    whole = results.groupby(["entry_id", "model", "structure", "replicate"])[["failure_type", "score"]]
    outcome = whole.apply(outcome_by_hand).rename("outcome").reset_index()
    for name, value, right in (
        ("outcome", "fails", outcome["outcome"] == "fails"),
        ("outcome", "unscored", outcome["outcome"] == "unscored"),
        ("structure", "rag", outcome["structure"] == "rag"),
        ("model", "stub/two", outcome["model"] == "stub/two"),
        ("type", "cross_domain", outcome["entry_id"].str.startswith("cross")),
    ):
        page.select_option(f"select[name={name}]", value)
        expected = outcome.loc[right, "entry_id"].nunique()
        assert count(page) == f"{expected} of 4 entries", (name, value)
        assert page.locator("#list tbody tr").count() == expected
        page.click("button[type=reset]")
    page.select_option("select[name=structure]", "flat")
    page.select_option("select[name=outcome]", "fails")
    right = (outcome["structure"] == "flat") & (outcome["replicate"] == 0) & (outcome["outcome"] == "fails")
    assert count(page) == f"{outcome.loc[right, 'entry_id'].nunique()} of 4 entries" != "4 of 4 entries"
    page.click("button[type=reset]")
    page.fill("input[name=text]", "銀行")
    page.locator("#count", has_text="1 of 4 entries").wait_for()
    assert "text=" in page.url
    page.click("button[type=reset]")
    page.select_option("select[name=outcome]", "differ")
    apart = outcome[outcome["outcome"] != "unscored"].groupby("entry_id")["outcome"].nunique() > 1
    assert count(page) == f"{apart.sum()} of 4 entries"
    page.click("button[type=reset]")


def test_one_entry_by_its_address_with_the_texts_as_texts(page):
    page.goto(page.address + "#entry=cross_domain-2")
    assert page.locator("blockquote").inner_text() == ENTRIES[1].query
    assert page.locator(".memories .memory span").all_inner_texts() == [m.text for m in ENTRIES[1].memories]
    assert page.locator(".memories wbr").count() == len(LONG) // 200 - 1
    assert EVIL in page.locator(".answer .reply").first.inner_text()
    assert page.locator("img").count() == 0 and page.locator("b").count() == 0
    assert page.evaluate("window.hit") is None
    page.locator("details summary").first.click()
    assert page.locator("pre.context").first.inner_text() == render(structure(ENTRIES[1].memories, "flat"))
    names = page.locator(".arm h4").all_inner_texts()
    assert names == ["flat", "fixed (embedding)", "tree (embedding)", "rag"]
    page.seen[:] = [address for address in page.seen if not address.startswith(page.address + "#")]


def test_a_memory_is_marked_in_every_layout_by_keyboard_and_pointer(page):
    page.evaluate("location.hash = 'entry=cross_domain-1'")
    page.locator("h2", has_text="cross_domain-1").wait_for()
    page.locator(".memories .memory button").nth(1).focus()
    lit = page.locator(".memory.lit")
    texts = set(lit.locator("span:not(.move):not(.was)").all_inner_texts())
    shown = page.locator(".layout .memory[data-memory='1']").count()
    assert texts == {"User rents a flat."} and lit.count() == 1 + shown and shown >= 3
    page.keyboard.press("Enter")
    assert page.locator(".memories .memory button").nth(1).get_attribute("aria-pressed") == "true"
    page.locator("h2").hover()
    assert lit.count() == 1 + shown
    page.keyboard.press("Escape")
    assert lit.count() == 0


def test_differences_are_marked_against_the_layout_chosen(page):
    page.evaluate("location.hash = 'entry=cross_domain-1'")
    page.locator("h2", has_text="cross_domain-1").wait_for()
    fixed = structure(ENTRIES[0].memories, "fixed")
    order = [memory.id for memory in fixed.all_memories()]
    moved = sum(order.index(memory.id) != place for place, memory in enumerate(ENTRIES[0].memories))
    head = page.locator(".arm").nth(1).locator("header").inner_text()
    assert f"{len(fixed.children)} new headings" in head
    assert (f"{moved} of 3 memories in another place" if moved else "same order") in head
    labels = page.locator(".arm").nth(1).locator("h5").all_inner_texts()
    assert [label.split("\n")[0].rstrip("0123456789") for label in labels] == [child.label for child in fixed.children]
    page.select_option("select[name=base]", "fixed (embedding), stub/one")
    assert "The layout compared with" in page.locator(".arm").nth(1).locator("header").inner_text()
    page.locator("#picks label", has_text="flat, stub/two").locator("input").check()
    heads = [header for header in page.locator(".arm header").all_inner_texts() if "layout" in header]
    assert sum("The layout compared with" in header for header in heads) == 1
    page.select_option("select[name=base]", "flat, stub/two")
    heads = page.locator(".arm header").all_inner_texts()
    assert sum("The layout compared with" in header for header in heads) == 1
    assert "The same layout as flat, stub/two" in heads[0] and "compared" not in heads[0]
    page.locator("#picks label", has_text="flat, stub/two").locator("input").uncheck()
    page.select_option("select[name=base]", "fixed (embedding), stub/one")
    under = page.locator(".arm").nth(0).locator(".was").all_inner_texts()
    assert under == [f"was under {path[0]}" for m in ENTRIES[0].memories for path, n in fixed.walk() if m in n.memories]


def test_next_back_and_a_narrow_screen(page):
    page.set_viewport_size({"width": 375, "height": 700})
    reset(page)
    first, second = page.locator("#list a").all_inner_texts()[:2]
    page.locator("#list a").first.click()
    assert page.locator("h2").inner_text() == first
    page.get_by_text("Next ›").click()
    assert page.locator("h2").inner_text() == second and page.locator(".arm").count() == 2
    boxes = [box.bounding_box() for box in page.locator(".arm").all()]
    assert boxes[0]["x"] == boxes[1]["x"] and boxes[1]["y"] > boxes[0]["y"] + boxes[0]["height"]
    assert page.evaluate("document.documentElement.scrollWidth") == 375
    page.go_back()
    assert page.locator("h2").inner_text() == first
    page.evaluate("location.hash = 'entry=nothing'")
    page.locator("#count", has_text="no entry nothing").wait_for()
    page.set_viewport_size({"width": 1280, "height": 900})
