"""Forgetting: no byte of the memory is left, nothing else is lost, and what cannot be cleaned is named."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import html
import json
import os
import shutil
import sqlite3
import zipfile
from contextlib import closing
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from structmem import cli, experiment, forgetting, schema
from structmem.blanking import TEXTS
from structmem.data import Entry, Memory, _text_problem
from structmem.errors import InputError, StoreError
from structmem.forgetting import Place, find_memory, forget_memory, memory_text
from structmem.judges import escape
from structmem.leftovers import left_in
from structmem.listings import listing
from structmem.llm import Client
from structmem.renderers import render
from structmem.results import read_results, write_results
from structmem.stats import failure_rate
from structmem.store import Store
from structmem.structures import structure
from structmem.traces import Trace, canonical
from structmem.tree import Node
from structmem.upkeep import merge

SECRET = 'User is quibbleflaxed by "zanthoxylum" & <cats>, since May.'
OTHERS = ("Likes tea with milk", "- Plays the oboe\nin an orchestra", "Lives in Tromsø", "Owes 4,000 euros")
WORDS = (b"zanthoxylum", b"quibbleflax")
WITH, WITHOUT = "cross_domain-0123456789ab", "cross_domain-ba9876543210"


def answerer(messages):
    return "I recall: " + " ".join(message["content"] for message in messages)[:2000]


def scorer(messages):
    return json.dumps({"reasoning": "It quotes " + messages[-1]["content"][:600], "score": 2})


def sorter(messages):
    said = messages[-1]["content"]
    return json.dumps({"assignments": {line.split(".")[0]: "health" for line in said.split("\n") if ". " in line}})


def vectors(messages):
    return json.dumps([0.5, 1.0])


for name in (answerer, scorer, sorter, vectors):
    name.model_id = f"forgetting-{name.__name__}"

ENTRIES = (
    Entry(WITH, (SECRET, *OTHERS), "What should I cook?", "cross_domain"),
    Entry(WITHOUT, OTHERS, "Where should I travel?", "cross_domain"),
)


def answers(entries, store):
    """Every renderer, both kinds of structurer, a judge, and embeddings of single memories."""
    with Client(store) as client:
        found = experiment.run(
            entries, [answerer], ["flat", "fixed"], structurers=["embedding", sorter],
            renderers=["markdown", "bullets", "xml", "inline"], judge="persistbench", judge_model=scorer, generations=1,
            client=client,
        )  # fmt: skip
        texts = {memory.text for entry in entries for memory in entry.memories}
        client.run_sync(client.aembed(vectors, sorted(texts)))
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A project with calls and results of an entry with the memory and of one without it."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "data" / "recorded").mkdir(parents=True)
    results = answers(ENTRIES, folder / "data" / "store.sqlite")
    assert len(results) == 32 and (results["status"] == "ok").all()
    write_results(results, folder / "data" / "results" / "r.parquet")
    return folder


@pytest.fixture
def project(made, tmp_path, monkeypatch):
    folder = tmp_path / "project"
    shutil.copytree(made, folder)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("STRUCTMEM_STORE", raising=False)
    return folder


def keys(path) -> set[str]:
    with closing(sqlite3.connect(path)) as db:
        return {key for (key,) in db.execute("SELECT key FROM calls")}


def bytes_of(folder: Path) -> dict[str, bytes]:
    """Every file's bytes, and what a table holds once it is unpacked."""
    found = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        found[str(path.relative_to(folder))] = path.read_bytes()
        if path.suffix == ".parquet":
            found[f"{path.name} unpacked"] = pd.read_parquet(path).to_csv().encode()
    return found


def holding(folder: Path) -> list[str]:
    return [name for name, data in bytes_of(folder).items() if any(word in data for word in WORDS)]


def embedded(texts) -> set[str]:
    """Keys of the embeddings of single memories."""
    with Store("data/store.sqlite", read_only=True) as store:
        own = {key for key in keys("data/store.sqlite") if store.get(key).role == "embedding"}
        return {key for key in own if any(json.dumps(text)[1:-1] in json.dumps(store.messages(key)) for text in texts)}


def test_no_byte_is_left_and_nothing_else_is_lost(project, capsys):
    before = read_results("data/results/r.parquet")
    Path("data/results/more").mkdir()
    before.to_csv("data/results/more/r.csv", index=False)
    shutil.copy("data/results/r.parquet.manifest.json", "data/results/more/r.csv.manifest.json")
    assert len(holding(project)) == 4  # store, two tables, one unpacked: else the test could not fail
    own = before.loc[before["entry_id"] == WITHOUT, ["answer_key", "judge_key", "structurer_key"]]
    expected = {key for cell in own.stack().dropna() for key in cell.split()} | embedded(OTHERS)
    assert cli.main(["forget", "--yes", SECRET]) == 0
    assert holding(project) == []
    assert sorted(path.name for path in (project / "data").iterdir()) == ["recorded", "results", "store.sqlite"]
    # What is left is what the other entry's rows were made with.
    assert keys("data/store.sqlite") == expected
    out = capsys.readouterr().out
    assert "partitions 2" in out and "zanthoxylum" not in out and "forgetting-scorer" in out
    for name in ("r.parquet", "more/r.csv"):
        after = read_results(f"data/results/{name}")
        same = [name for name in before if name not in (*TEXTS, "status_reason")]
        pd.testing.assert_frame_equal(after[same], before[same])
        untouched = after["entry_id"] == WITHOUT
        pd.testing.assert_frame_equal(after[untouched], before[before["entry_id"] == WITHOUT])
        gone = after[~untouched]
        assert gone[["response", "judge_reasoning", "headings", "context_sha256"]].isna().all(axis=None)
        assert (gone["status_reason"] == "forgotten").all() and (gone["score"] == 2).all()
        facts = json.loads((project / "data" / "results" / f"{name}.manifest.json").read_text())
        (said,) = facts["exclusions"]
        assert said.startswith("16 rows whose texts were blanked") and facts["rows"] == 32
        assert facts["file_sha256"] == hashlib.sha256((project / "data" / "results" / name).read_bytes()).hexdigest()
    pd.testing.assert_frame_equal(failure_rate(after), failure_rate(before))
    assert os.stat("data/results/r.parquet").st_mode & 0o777 == 0o600


def test_a_dry_run_counts_and_changes_nothing(project, capsys):
    before = bytes_of(project)
    assert cli.main(["forget", "--dry-run", SECRET]) == 0
    assert bytes_of(project) == before
    out = capsys.readouterr().out
    whole = {key for key in keys("data/store.sqlite")}
    with Store("data/store.sqlite", read_only=True) as store:
        own = [store.get(key).role for key in whole if "zanthoxylum" in json.dumps(store.messages(key))]
    counts = {"answers": "answer", "verdicts": "judge", "embeddings": "embedding"}
    for word, role in counts.items():
        assert f"{word} {own.count(role)}" in out
    assert "r.parquet: rows 16" in out


def test_nothing_goes_unconfirmed(project, monkeypatch, capsys):
    before = bytes_of(project)
    assert cli.main(["forget", SECRET]) == 2 and "--yes" in capsys.readouterr().err  # nobody is there
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("structmem.cli._confirmed", lambda question: False)
    assert cli.main(["forget", SECRET]) == 1
    assert bytes_of(project) == before


def test_rows_go_altogether_when_asked(project):
    found = find_memory(SECRET, Place())
    forget_memory(found, Place(), drop_rows=True)
    after = read_results("data/results/r.parquet")
    assert set(after["entry_id"]) == {WITHOUT} and len(after) == 16
    facts = json.loads(Path("data/results/r.parquet.manifest.json").read_text())
    assert facts["exclusions"][0].startswith("16 rows deleted") and (facts["rows"], facts["entries"]) == (16, 1)


def test_rows_of_the_same_entry_are_found_in_files_whose_calls_are_elsewhere(project):
    rows = read_results("data/results/r.parquet").assign(answer_key="0" * 64, judge_key=None, structurer_key=None)
    Path("elsewhere").mkdir()
    rows.assign(judge="another").to_parquet("elsewhere/x.parquet", index=False)
    place = Place(results=("data/results", "elsewhere/x.parquet"))
    forget_memory(find_memory(SECRET, place), place)
    assert read_results("elsewhere/x.parquet")["response"].isna().sum() == 16


def test_only_whole_memories_are_found(project):
    for part in ("tea", "I", "in"):
        found = find_memory(part, Place(), look_through=False)
        assert found.n == 0
    assert found.held.elsewhere
    assert (
        find_memory("Likes tea", Place(), look_through=False).held.elsewhere == len(keys("data/store.sqlite")) - 4
    )  # 4 lone embeddings
    everything = Place(parts=True)
    for short in ("tea", "Likes tea", "quibbleflaxed", "猫が好き"):
        with pytest.raises(InputError, match="too short"):
            find_memory(short, everything)
    forget_memory(find_memory("Likes tea with", everything), everything)
    assert len(keys("data/store.sqlite")) == 4


@pytest.mark.parametrize("spelling", ["  " + SECRET.replace(" ", "\n ") + "\n", "- Plays the oboe in an orchestra "])
def test_blanks_and_unicode_forms_do_not_matter(project, spelling):
    import unicodedata

    found = find_memory(unicodedata.normalize("NFD", spelling), Place(), look_through=False)
    mine = len(find_memory(SECRET, Place(), look_through=False).held.keys)
    # One entry of two holds the secret, both hold the others; each memory has its own embedding.
    assert len(found.held.keys) == (mine if "quibble" in spelling else 2 * mine - 1)


def test_a_merged_store_is_searched_by_its_own_salt(project, tmp_path):
    into = tmp_path / "joined.sqlite"
    merge(into, ["data/store.sqlite"])
    with closing(sqlite3.connect(into)) as db:  # only hashes are left to find it by
        db.execute("UPDATE texts SET text = '(lost)' WHERE text LIKE '%quibbleflax%'")
        db.execute("UPDATE calls SET text = NULL, reasoning = NULL")
        db.commit()
    held = find_memory(SECRET, Place(store=into), look_through=False).held
    expected = find_memory(SECRET, Place(), look_through=False).held.calls
    assert held.calls == {kind: n for kind, n in expected.items() if kind != "embeddings"}  # those carry no hashes


# -- cut short --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["drop_unused", "_remove"])
def test_killed_in_the_middle_the_same_command_finishes(project, where, monkeypatch):
    book = saved_book(project / "book.json")
    before = keys("data/store.sqlite")

    def die(*_):
        raise KeyboardInterrupt

    command = ["forget", "--yes", "--book", str(book), "mem0:abc"]
    with monkeypatch.context() as patch:
        patch.setattr(forgetting, where, die)
        assert cli.main(command) == 130
    assert (keys("data/store.sqlite") == before) == (where == "drop_unused")  # whole or not at all
    assert "zanthoxylum" in book.read_text()
    assert cli.main(command) == 0
    assert holding(project) == []


def test_a_store_that_cannot_be_written_anew_is_not_called_clean(project, monkeypatch):
    def full(db):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(forgetting, "vacuum", full)
    with pytest.raises(StoreError, match=r"after the memory was deleted .* disk is full"):
        forget_memory(find_memory(SECRET, Place(), look_through=False), Place())


def test_a_results_file_that_was_cut_short_is_cleaned_again(project, monkeypatch):
    from structmem import blanking

    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(blanking, "_write", die)
        assert cli.main(["forget", "--yes", SECRET]) == 130
    assert cli.main(["forget", "--yes", SECRET]) == 0
    for path in Path("data/results").rglob("*.manifest.json"):
        facts = json.loads(path.read_text())
        assert len(facts["exclusions"]) == 1 and facts["file_sha256"]


def test_a_busy_store_is_left_alone_and_a_late_reader_is_named(project, monkeypatch):
    monkeypatch.setattr(schema, "BUSY_SECONDS", 0.05)
    found = find_memory(SECRET, Place())
    with closing(sqlite3.connect("data/store.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        before = bytes_of(project / "data" / "results")
        with pytest.raises(StoreError, match="another process held it"):
            forget_memory(found, Place())
        assert bytes_of(project / "data" / "results") == before
        other.execute("ROLLBACK")
        other.execute("BEGIN")
        other.execute("SELECT count(*) FROM calls").fetchone()
        with pytest.raises(StoreError, match=r"log beside it still holds .* same command again"):
            forget_memory(found, Place())
        other.execute("COMMIT")
    assert cli.main(["forget", "--yes", SECRET]) == 1  # nothing more was found, and the log was emptied
    assert holding(project) == []


# -- books and ids ----------------------------------------------------------------------------------------------------


def saved_book(path: Path, kind: str = "fixed") -> Path:
    from structmem.memorybook import MemoryBook

    book = MemoryBook(
        [Memory("7", SECRET, source="mem0:abc"), *(Memory(str(k), t) for k, t in enumerate(OTHERS))], kind
    )
    book.context(30)
    book.save(path)
    return path


@pytest.mark.parametrize("kind", ["fixed", "tree"])
def test_a_book_loses_the_memory_and_names_made_from_it(project, kind):
    from structmem.memorybook import MemoryBook

    path = saved_book(project / "book.json", kind)
    place = Place(books=(path,))
    assert memory_text("7", place) == memory_text("mem0:abc", place) == memory_text("abc", place) == SECRET
    found = find_memory(SECRET, place)
    assert found.books == {path: 1}
    forget_memory(found, place)
    assert not any(word in path.read_bytes() for word in WORDS)
    again = MemoryBook.load(path)
    assert [memory.text for memory in again.memories] == list(OTHERS)
    assert again.context(30).status == "fresh"


def test_an_id_is_looked_up_and_never_taken_for_a_text(project, tmp_path):
    own = tmp_path / "mine.jsonl"
    own.write_text(json.dumps({"query": "What now?", "memories": ["One.", SECRET]}))
    from structmem.data import load_entries

    (entry,) = load_entries(own)
    place = Place(entries=own)
    assert memory_text(f"{entry.entry_id}:2", place) == SECRET
    with pytest.raises(InputError, match="memories 1 to 2, got 3"):
        memory_text(f"{entry.entry_id}:3", place)
    with pytest.raises(InputError, match="--entries"):
        memory_text("entry-0123456789ab:1", Place())
    with pytest.raises(InputError, match="blank"):
        memory_text(" \n", Place())
    for unknown in ("2", "mem0:a1"):
        with pytest.raises(InputError, match=f"^No book was given .* id or source '{unknown}'"):
            memory_text(unknown, Place())
        assert memory_text(unknown, Place(), typed=False) == unknown
    assert memory_text("vegetarian", Place()) == "vegetarian"


def test_an_id_that_is_gone_is_no_text(project, capsys):
    book = saved_book(project / "book.json")
    command = ["forget", "--yes", "--book", str(book), "abc"]
    assert cli.main(command) == 0
    assert "stop it, or let it load the file again" in capsys.readouterr().out
    before = bytes_of(project)
    for flags in ([], ["--parts"]):
        assert cli.main([*command, *flags]) == 2
        assert "book.json has no memory with the id or source 'abc'" in capsys.readouterr().err
    assert bytes_of(project) == before
    assert memory_text("猫が好き", Place(books=(book,))) == "猫が好き"


def test_an_id_of_another_store_is_its_name_with_the_id_or_the_id_alone(tmp_path):
    from structmem.memorybook import MemoryBook

    path = tmp_path / "b.json"
    MemoryBook(
        [Memory("a2", "One.", source="mem0"), Memory("2", "Two.", source="mem0"), Memory("3", "Three.", source="x:a2")],
        "flat",
    ).save(path)
    place = Place(books=(path,))
    assert memory_text("mem0:a2", place) == memory_text("a2", place) == "One."
    assert memory_text("x:a2", place) == "Three."
    with pytest.raises(InputError, match="'mem0' names 2 memories of the books, with the ids 'a2', '2'"):
        memory_text("mem0", place)


def test_a_place_without_a_store_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STRUCTMEM_STORE", raising=False)
    for flag in ("--dry-run", "--yes"):
        assert cli.main(["forget", flag, SECRET]) == 1
        out = capsys.readouterr().out
        assert f"There is no store here: {tmp_path.resolve() / 'data' / 'store.sqlite'}" in out
        assert "What is left" not in out and "Take it out" not in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--results", "nowhere.csv"], "nothing at 'nowhere.csv'"),
        (["--results", "README.txt"], "expected a results file"),
        (["--store", "README.txt"], "not a structmem store"),
        (["--store", "none.sqlite"], "no store of calls"),
        (["--book", "README.txt"], "README.txt"),
    ],
)
def test_a_wrong_place_is_one_sentence(project, arguments, said, capsys):
    Path("README.txt").write_text("no table")
    assert cli.main(["forget", "--yes", SECRET, *arguments]) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1
    assert len(holding(project)) == 3


# -- what cannot be cleaned -------------------------------------------------------------------------------------------


def test_files_that_cannot_be_cleaned_are_named(project, tmp_path, capsys):
    printed = json.dumps({"said": SECRET}, ensure_ascii=True)
    notebook = {"cells": [{"outputs": [{"text": [printed[:30], printed[30:]]}]}], "nbformat": 4}
    files = {
        "runs/a.ipynb": json.dumps(notebook).encode(),
        "export.jsonl.gz": gzip.compress(json.dumps({"text": SECRET}).encode()),
        "report/index.html": f"<p>{html.escape(SECRET).replace('quibble', '<b>quib</b>ble')}</p>".encode(),
        "sheet.csv": ('"' + SECRET.replace('"', '""') + '"').encode("utf-16"),
        "notes.md": b"quibbleflaxed by zanthoxylum, but not in these words",
        ".ipynb_checkpoints/copy.txt": SECRET.encode(),
        ".git/copy.txt": SECRET.encode(),
        "gone.sqlite-wal": b"\0\x01" + SECRET.encode(),
        "bare.txt": SECRET.encode("utf-16-le"),
        "lines.html": html.escape(SECRET).replace(" ", "<br/>").encode(),
        "sheet.csv.bz2": bz2.compress(SECRET.encode()),
    }
    for name, data in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(data)
    with zipfile.ZipFile("log.eval", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("samples/1.json", json.dumps({"input": render(Node(None, (Memory("1", SECRET),)), "xml")}))
    shutil.copy("data/store.sqlite", "data/other.sqlite")
    Path("broken.gz").write_bytes(b"\x1f\x8bno")
    Path("broken.eval").write_bytes(Path("log.eval").read_bytes()[:60])
    pd.DataFrame({"said": [[SECRET, "x"], ["y"]]}).to_parquet("nested.parquet")
    os.symlink(tmp_path, "linked")  # the folder that holds the project too
    (tmp_path / "afar.txt").write_bytes(SECRET.encode())
    with Store("data/store.sqlite", read_only=True) as store:  # a record without the words, known by its key
        mine = next(iter(find_memory(SECRET, Place(), look_through=False).held.keys & keys("data/store.sqlite")))
        Path("keys.jsonl").write_text(json.dumps({"key": mine, "text": store.get(mine).role}))
    capsys.readouterr()
    assert cli.main(["forget", "--yes", SECRET]) == 1
    left = capsys.readouterr().out.split("What is left:")[1]
    named = {line.split(":")[0].strip(): line for line in left.splitlines() if line.startswith("  ")}
    assert set(named) == {
        "runs/a.ipynb", "export.jsonl.gz", "report/index.html", "sheet.csv", "log.eval", "data/other.sqlite",
        "broken.gz", "keys.jsonl", "broken.eval", "nested.parquet", "linked/afar.txt", ".ipynb_checkpoints/copy.txt",
        "gone.sqlite-wal", "bare.txt", "lines.html", "sheet.csv.bz2",
    }  # fmt: skip
    assert "could not be looked into" in named["broken.gz"] and "(1)" in named["keys.jsonl"]


def test_outside_a_project_the_top_and_what_structmem_writes_are_looked_at(tmp_path):
    for name in ("review.csv", "runs/a/x.txt", ".report.abc/entries.html", "Documents/diary.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(SECRET)
    (tmp_path / "mine.jsonl").write_text(SECRET)
    left = left_in(tmp_path / "runs", Trace(SECRET), set(), set(), None, [tmp_path / "mine.jsonl"])
    assert [one.path.name for one in left] == ["mine.jsonl"]
    left = left_in(tmp_path, Trace(SECRET), set(), set(), None)
    assert {str(one.path.relative_to(tmp_path)) for one in left} == {
        "review.csv", "mine.jsonl", "runs/a/x.txt", ".report.abc/entries.html",
    }  # fmt: skip


# -- traces -----------------------------------------------------------------------------------------------------------

WRITTEN = some.text(min_size=1, max_size=40).filter(lambda text: _text_problem(text) is None and canonical(text))


@settings(max_examples=20, deadline=None)
@given(text=WRITTEN, other=WRITTEN)
def test_a_memory_is_found_in_every_form_in_which_requests_hold_it(text, other):
    node = Node(None, (Memory("1", text),), (Node("health", (Memory("2", other),)),))
    trace = Trace(text)
    requests = [str(render(node, name)) for name in ("markdown", "bullets", "xml")]
    requests += [f"Memories:\n{listing([other, text])}", json.dumps([{"type": "text", "text": requests[0]}])]
    requests += [f"<memories>\n- {escape(other, memory=True)}\n- {escape(text, memory=True)}\n</memories>\n\nHow?"]
    assert all(trace.whole(request) for request in requests)
    assert all(canonical(found) == canonical(text) for request in requests for found in trace.whole(request))


PLAIN = some.lists(
    some.sampled_from(["Ærø", "tea", "猫", '"quoted"', "a\\b", "<b>", "&", "&lt;", "5 %", "😀", "e\u0301t"]), min_size=1
)


@settings(max_examples=20, deadline=None)
@given(words=PLAIN)
def test_a_memory_is_found_within_other_texts_under_any_escape(words):
    text = " ".join(words)
    trace = Trace(text)
    said = f"She said: {text}, again."
    shown, script = html.escape(said), json.dumps(html.escape(said)).replace("&", "\\u0026")
    views = [said, json.dumps(said), json.dumps(json.dumps(said)), shown, said.replace('"', '""'), script]
    views += [html.escape(said, quote=False).replace('"', '""'), html.escape(json.dumps(shown)), html.escape(shown)]
    for view in views:
        assert trace.within("tea " + "x " * 2000 + view + " x" * 2000)
    assert not trace.within("She said nothing of it.")


@pytest.mark.parametrize(
    ("text", "inside", "found"),
    [
        ("tea", "a team of teachers", False),
        ("tea", "no tea!", True),
        ("猫が好き", "私は猫が好きです", True),
        ("I", "It", False),
    ],
)
def test_words_are_never_cut(text, inside, found):
    assert Trace(text).within(inside) is found


def test_a_text_of_another_memory_is_no_whole_memory():
    node = structure(["Likes tea with milk", "Lives in Oslo, Norway"], "flat")
    for name in ("markdown", "bullets", "xml", "inline"):
        assert not any(Trace(part).whole(str(render(node, name))) for part in ("Likes tea", "Oslo", "milk", "Norway"))
