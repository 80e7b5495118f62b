"""The audit sheet: what it hides, how it samples, what spreadsheets do to it, and what an import refuses."""

from __future__ import annotations

import csv
import io
import json
import os

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from structmem import cli
from structmem.audit import SCALES, _allocation, audit_export, audit_import
from structmem.auditfiles import digest, safe, sheet_text, unsafe
from structmem.columns import conform
from structmem.data import FAILURE_TYPES, Entry, load_entries
from structmem.errors import InputError
from structmem.planted import simulated_scores
from structmem.planted_judges import fill_in, misjudged
from structmem.results import write_results

NASTY = (
    '=HYPERLINK("http://x","y")',
    "+1",
    "-2 apples",
    "@sum",
    "  =1+1",
    "'quoted",
    "a\nb\r\nc",
    "＝1",
    "\tx",
    'say "hi"',
)


def answered(n=30, kinds=("cross_domain",)):
    """Simulated results with answers, among them those that a spreadsheet would run, and their entries."""
    rates = [("m", s, r, kind) for kind in kinds for s, r in (("flat", 0.6), ("dynamic", 0.4))]
    rates = pd.DataFrame(rates, columns=["model", "structure", "failure_rate", "failure_type"])
    table = simulated_scores(rates, n)
    texts = [f"{NASTY[place % len(NASTY)]} answer {place}" for place in range(len(table))]
    texts[:3] = NASTY[0], "two\nlines", "ends with blank "
    table = conform(table.assign(response=texts, judge_reasoning="SECRET reasoning"))
    kinds = table.drop_duplicates("entry_id")[["entry_id", "failure_type"]].itertuples(index=False)
    entries = [Entry(entry, ("=cmd", "Keeps bees.\nTwice."), f"-Which hat {entry}?", kind) for entry, kind in kinds]
    return table, entries


@pytest.fixture(scope="module")
def source():
    return answered()


@pytest.fixture
def sheet(source, tmp_path):
    return *audit_export(*source, tmp_path / "sheet.csv", n=60), source[0]


def cells(path):
    with open(path, encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def rewrite(path, rows, delimiter=",", encoding="utf-8"):
    out = io.StringIO()
    writer = csv.DictWriter(out, rows[0], delimiter=delimiter, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path.write_bytes(out.getvalue().encode(encoding))


# ------------------------------------------------------------------------------------------------------------ export


def test_the_sheet_is_blind_and_both_files_are_the_owners(sheet):
    path, key, table = sheet
    text = path.read_text(encoding="utf-8-sig")
    for hidden in ("flat", "dynamic", "simulated/m", "SECRET", "standard", "markdown", table["entry_id"].iloc[0] + '"'):
        assert hidden not in text.replace("Which hat simulated", "")
    assert list(cells(path)[0]) == ["item", "failure_type", "question", "memories", "answer", "scale", "score", "note"]
    assert {row["score"] + row["note"] for row in cells(path)} == {""}
    assert [os.stat(file).st_mode & 0o777 for file in (path, key)] == [0o600, 0o600]
    assert "SECRET" not in key.read_text(encoding="utf-8")


def test_items_say_nothing_by_their_order(sheet):
    path, key, _ = sheet
    strata = [item["stratum"] for item in json.loads(key.read_text(encoding="utf-8"))["items"]]
    changes = sum(a != b for a, b in zip(strata, strata[1:], strict=False))
    assert changes > 0.7 * len(strata)  # sorted by stratum there would be one change per stratum


def test_no_cell_is_a_formula_and_texts_come_back(sheet):
    path, key, table = sheet
    for row in cells(path):
        assert not any(cell.lstrip().startswith(tuple("=+-@＝＋－＠")) for cell in row.values() if cell)
    known = set(table["response"])
    assert {unsafe(row["answer"]) for row in cells(path)} <= known
    assert all(unsafe(row["question"]).startswith("-Which hat") for row in cells(path))
    assert all("2. Keeps bees.\nTwice." in row["memories"] for row in cells(path))


@given(st.text())
def test_escaping_is_exact(text):
    assert unsafe(safe(text)) == text
    assert not safe(text).lstrip().startswith(tuple("=+-@＝＋－＠")) and not safe(text).startswith(("\t", "\r", "\n"))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0")), min_size=8, max_size=8))
def test_a_sheet_reads_back_as_written(line):
    found = list(csv.reader(io.StringIO(sheet_text([line]), newline="")))
    assert [unsafe(cell) for cell in found[1]] == line


@given(st.dictionaries(st.text(min_size=1), st.integers(1, 60), min_size=1, max_size=12), st.integers(1, 300))
def test_items_are_shared_out_evenly(population, n):
    n = max(n, len(population))
    share = _allocation(population, n)
    assert sum(share.values()) == min(n, sum(population.values()))
    assert all(1 <= share[s] <= population[s] for s in population)
    open_ = [share[s] for s in population if share[s] < population[s]]
    # Strata that could give more differ by one item at most, and no stratum gave more than they did.
    assert not open_ or (max(open_) - min(open_) <= 1 and max(share.values()) <= max(open_) + 1)


def test_weights_add_up_to_the_rows_they_stand_for(sheet):
    path, key, table = sheet
    facts = json.loads(key.read_text(encoding="utf-8"))
    weights = pd.Series([item["weight"] for item in facts["items"]])
    strata = pd.Series([item["stratum"] for item in facts["items"]])
    assert weights.sum() == pytest.approx(len(table))
    for stratum, of in facts["strata"].items():
        assert (
            weights[strata == stratum].sum() == pytest.approx(of["rows"]) and (strata == stratum).sum() == of["sampled"]
        )
    assert facts["by"] == ["structure", "replicate"]


def test_the_same_seed_gives_the_same_sheet_whatever_the_order_of_rows(source, tmp_path):
    table, entries = source
    one, _ = audit_export(table, entries, tmp_path / "a.csv", n=40, seed=5)
    two, _ = audit_export(table.sample(frac=1, random_state=1), entries[::-1], tmp_path / "b.csv", n=40, seed=5)
    other, _ = audit_export(table, entries, tmp_path / "c.csv", n=40, seed=6)
    assert one.read_bytes() == two.read_bytes() != other.read_bytes()


def test_everything_is_in_the_sheet_when_there_are_few(source, tmp_path):
    table, entries = source
    path, key = audit_export(table, entries, tmp_path / "all.csv", n=10_000)
    assert len(cells(path)) == len(table)
    assert {item["weight"] for item in json.loads(key.read_text(encoding="utf-8"))["items"]} == {1.0}


def test_scales_are_explained_for_every_failure_type(tmp_path):
    assert set(SCALES) == set(FAILURE_TYPES)
    for kind in FAILURE_TYPES.values():
        assert all(f"{score}:" in SCALES[kind.name] for score in range(kind.low, kind.high + 1))
    table, entries = answered(8, tuple(FAILURE_TYPES))
    path, _ = audit_export(table, entries, tmp_path / "s.csv", n=200, by="structure")
    assert {(row["failure_type"], row["scale"]) for row in cells(path)} == set(SCALES.items())
    own = table[table["failure_type"] == "cross_domain"].assign(scale_low=0, scale_high=10)
    path, _ = audit_export(own, entries, tmp_path / "own.csv", n=200)
    assert {row["scale"] for row in cells(path)} == {"0 to 10, by the instructions you were given."}


def test_what_export_refuses(source, tmp_path):
    table, entries = source
    path = tmp_path / "sheet.csv"
    for change, words in (
        ({"results": table.drop(columns="response")}, "simulated results have no answers"),
        ({"results": table.drop(columns="response").assign(model="m")}, "recorded results are stored without them"),
        ({"results": table.assign(score=np.nan, status="no_verdict")}, "no judged answer"),
        ({"results": pd.concat([table, table.assign(judge="two")])}, "several judges"),
        ({"entries": entries[:3]}, "entries lack"),
        ({"n": 3}, "fewer than the"),
        ({"n": 0}, "n must be"),
        ({"by": "colour"}, "by must be one of"),
        ({"path": tmp_path / "sheet.xlsx"}, "ends in .csv"),
    ):
        given_ = {"results": table, "entries": entries, "path": path} | change
        with pytest.raises(InputError, match=words):
            audit_export(given_.pop("results"), given_.pop("entries"), given_.pop("path"), **given_)
        assert not list(tmp_path.iterdir())
    path.write_text("somebody's work")
    with pytest.raises(InputError, match="exists already"):
        audit_export(table, entries, path)
    assert path.read_text() == "somebody's work"


def test_cells_that_a_spreadsheet_would_cut_are_said(source, tmp_path):
    table, entries = source
    with pytest.warns(UserWarning, match="longer than 32767"):
        audit_export(table.assign(response="x" * 40_000), entries, tmp_path / "long.csv", n=20)


# ------------------------------------------------------------------------------------------------------------ import


def test_a_round_trip_puts_both_scores_beside_each_other(sheet):
    path, key, table = sheet
    truth = misjudged(table, 0.8, 0.8)
    assert fill_in(path, key, truth) == 60 and os.stat(path).st_mode & 0o777 == 0o600
    found = audit_import(path, key, table)
    wanted = found.merge(table, on=["entry_id", "model", "structure", "replicate", "generation"], suffixes=("", "_r"))
    assert len(wanted) == 60 and (wanted["judge_score"] == wanted["score"]).all()
    assert (found["judge_failed"] == (found["judge_score"] >= 3)).all()
    assert (found["human_failed"] == (found["human_score"] >= 3)).all() and found.attrs["n_empty"] == 0
    assert found["weight"].sum() == pytest.approx(len(table))


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_what_spreadsheets_write(sheet, delimiter, encoding):
    path, key, table = sheet
    rows = cells(path)[::-1]  # sorted by the person
    for place, row in enumerate(rows):
        row["score"] = ("3", " 4 ", "2.0", "5,0", "")[place % 5]
        row["answer"] = row["answer"].replace("\r\n", "\n")
        row["note"] = "'=odd" if place == 0 else ""
    rewrite(path, rows, delimiter, encoding)
    found = audit_import(path, key, table).set_index("item")
    assert found.attrs["n_empty"] == 12 and found["human_score"].isna().sum() == 12
    assert found["human_failed"].isna().sum() == 12
    assert set(found["human_score"].dropna()) == {2, 3, 4, 5}
    assert found.loc[rows[0]["item"], "note"] == "=odd"


def test_a_sheet_of_which_columns_were_deleted_still_counts(sheet):
    path, key, table = sheet
    rewrite(path, [{"Item": row["item"], "Score": "1"} for row in cells(path)])
    assert (audit_import(path, key, table)["human_score"] == 1).all()


def test_what_import_refuses(sheet, source, tmp_path):
    path, key, table = sheet
    rows = cells(path)
    other, _ = audit_export(*source, tmp_path / "other.csv", n=60, seed=9)

    def shifted():
        answers = [row["answer"] for row in rows]
        return [row | {"answer": answer} for row, answer in zip(rows, answers[1:] + answers[:1], strict=True)]

    for changed, words in (
        (rows[:-2], "2 of 60 items are gone"),
        ([*rows, rows[0]], "more than once"),
        ([*rows[1:], rows[0] | {"item": "S1-001"}], "1 unknown items"),
        (cells(other), "belongs to another key"),
        ([rows[0] | {"score": "6"}, *rows[1:]], "has the score '6'; expected a whole number from 1 to 5"),
        ([rows[0] | {"score": "2.5"}, *rows[1:]], "expected a whole number"),
        ([rows[0] | {"score": "bad"}, *rows[1:]], "expected a whole number"),
        (shifted(), "stand beside another answer"),
        ([{"number": "1", "score": "2"}], "no columns 'item' and 'score'"),
    ):
        rewrite(path, changed)
        with pytest.raises(InputError, match=words):
            audit_import(path, key, table)
    rewrite(path, rows)
    with pytest.raises(InputError, match="do not hold the rows of"):
        audit_import(path, key, table[table["structure"] == "flat"])
    with pytest.raises(InputError, match="is no key of an audit sheet"):
        audit_import(path, path, table)
    key.write_text(json.dumps(json.loads(key.read_text(encoding="utf-8")) | {"version": 99}))
    with pytest.raises(InputError, match="version 99"):
        audit_import(path, key, table)


def test_echo_judged_answers_get_a_persons_scores_by_the_failure_types_scale(source, tmp_path):
    table, entries = source
    echo = table.assign(judge="echo", echoed=table["score"] >= 3, echo_overlap=0.5, echo_threshold=0.5, threshold=0.5)
    echo = conform(echo.assign(score=np.nan, scale_low=None, scale_high=None, high_is_bad=None))
    with pytest.warns(UserWarning, match="echo measure gives no verdict to compare"):
        path, key = audit_export(echo, entries, tmp_path / "echo.csv", n=30)
    fill_in(path, key, table)
    found = audit_import(path, key, echo)
    assert found["judge_failed"].isna().all() and found["judge_score"].isna().all()
    assert (found["human_failed"] == (found["human_score"] >= 3)).all()
    assert found["stratum"].str.contains("score echo|score no echo").all()


def test_digests_forgive_line_ends_and_blanks_only():
    assert digest("a\r\nb  c ") == digest("a\nb c") != digest("a b d")


# ----------------------------------------------------------------------------------------------------- the command


def test_the_command_exports_and_imports(source, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table, entries = source
    own = [
        {"memories": [m.text for m in e.memories], "query": e.query, "failure_type": "cross_domain"} for e in entries
    ]
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, own)))
    ids = {e.entry_id: one.entry_id for e, one in zip(entries, load_entries("own.jsonl"), strict=True)}
    table = table.assign(entry_id=table["entry_id"].map(ids))
    write_results(table, "results.parquet")
    export = ["audit", "export", "results.parquet", "sheet.csv", "--n", "40", "--source", "own.jsonl"]
    assert cli.main([*export, "--by", "structure"]) == 0
    fill_in("sheet.csv", "sheet.key.json", table)
    assert (
        cli.main(["audit", "import", "sheet.csv", "sheet.key.json", "--results", "results.parquet", "-o", "o.csv"]) == 0
    )
    said = capsys.readouterr().out
    assert "40 items, 0 without a score." in said and "sensitivity" in said and "100.0 %" in said
    assert len(pd.read_csv("o.csv")) == 40 and os.stat("o.csv").st_mode & 0o777 == 0o600
    assert cli.main(export) == 2 and "exists already" in capsys.readouterr().err


@pytest.mark.parametrize(
    "damage",
    [
        lambda facts: facts.update(items=3),
        lambda facts: facts.update(items=["a"]),
        lambda facts: facts.update(items=facts["items"] + facts["items"][:1]),
        lambda facts: facts["items"][0].pop("stratum"),
        lambda facts: facts["items"][0].pop("answer_sha256"),
        lambda facts: facts["items"][0].pop("row"),
        lambda facts: facts["items"][0]["row"].pop("model"),
        lambda facts: facts["items"][0]["row"].update(generation="0"),
        lambda facts: facts["items"][0].update(weight="2"),
    ],
)
def test_a_damaged_key_is_refused(sheet, damage):
    path, key, results = sheet
    facts = json.loads(key.read_text(encoding="utf-8"))
    damage(facts)
    key.write_text(json.dumps(facts), encoding="utf-8")
    with pytest.raises(InputError, match="damaged or there twice"):
        audit_import(path, key, results)


def test_an_answer_is_known_again_however_a_spreadsheet_saved_it():
    for text, saved in (
        ("'quoted' is quoted", "quoted' is quoted"),  # one apostrophe is taken for the sheet's own
        ("a\x00b\u200bc", "abc"),
        ("word " * 9000, ("word " * 9000)[:32_767]),
    ):
        assert digest(text) == digest(saved)
    assert digest("one") != digest("other")


def test_a_key_in_the_place_of_the_sheet_is_refused_and_no_key_stays_without_a_sheet(source, tmp_path, monkeypatch):
    with pytest.raises(InputError, match="file of its own"):
        audit_export(*source, tmp_path / "sheet.csv", n=60, key=tmp_path / "sheet.csv")
    (tmp_path / "sheet.csv").symlink_to(tmp_path / "nowhere" / "sheet.csv")
    with pytest.raises(InputError, match="cannot be written"):
        audit_export(*source, tmp_path / "sheet.csv", n=60)
    assert [path.name for path in tmp_path.iterdir()] == ["sheet.csv"]


@pytest.mark.parametrize("more", [{"seed": -1}, {"seed": "a"}, {"path": "a\0.csv"}, {"path": "x" * 300 + ".csv"}])
def test_seeds_and_names_that_are_none_are_refused(source, tmp_path, more):
    path = tmp_path / more.pop("path", "sheet.csv")
    with pytest.raises(InputError):
        audit_export(*source, path, n=60, **more)


@pytest.mark.parametrize("entries", [None, "abc", ["abc"], 3])
def test_what_are_no_entries_is_refused(source, tmp_path, entries):
    with pytest.raises(InputError, match="entries must be"):
        audit_export(source[0], entries, tmp_path / "sheet.csv", n=60)
