"""Reference labels: the shipped files, files of users, and the lookup by memory set."""

from __future__ import annotations

import csv
import hashlib
import json
import os
from collections import defaultdict

import pytest

from structmem.data import FAILURE_TYPES, Entry, load_entries
from structmem.errors import InputError
from structmem.labels import (
    COLUMNS,
    SHIPPED,
    label_sheet,
    labelled,
    labels_folder,
    labels_of,
    load_labels,
    memory_set,
)
from structmem.taxonomy import load_taxonomy


@pytest.fixture(scope="module")
def benchmark():
    return load_entries("persistbench", list(FAILURE_TYPES))


@pytest.fixture(scope="module")
def sample():
    with (labels_folder() / "sample.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_sample_is_drawn_again_from_the_installed_benchmark(benchmark, sample):
    strata = defaultdict(list)
    cross = [entry for entry in benchmark if entry.failure_type == "cross_domain"]
    for place, entry in enumerate(cross):
        strata["cross_domain, recorded" if place < 20 else f"cross_domain, {entry.memory_domain}"].append(entry)
    for entry in benchmark:
        if entry.failure_type != "cross_domain":
            strata[entry.failure_type].append(entry)
    sizes = {"cross_domain, recorded": 20, "sycophancy": 10, "beneficial_memory_usage": 10}
    wanted = {}
    for name, entries in strata.items():
        n = sizes.get(name, 3)
        ranked = sorted(entries, key=lambda entry: hashlib.sha256(f"labels:{entry.entry_id}".encode()).hexdigest())
        wanted |= {entry.entry_id: (name, len(entries), n, len(entry.memories)) for entry in ranked[:n]}
    found = {
        row["entry_id"]: (
            row["stratum"],
            int(row["stratum_entries"]),
            int(row["stratum_sampled"]),
            int(row["n_memories"]),
        )
        for row in sample
    }
    assert found == wanted
    for row in sample:
        assert float(row["weight"]) == pytest.approx(
            int(row["stratum_entries"]) / int(row["stratum_sampled"]), rel=1e-5
        )
    assert sum(float(row["weight"]) for row in sample) == pytest.approx(len(benchmark), abs=0.01)


def test_the_sample_names_memory_sets_by_their_digest(benchmark, sample):
    entries = {entry.entry_id: entry for entry in benchmark}
    for row in sample:
        texts = [memory.text for memory in entries[row["entry_id"]].memories]
        whole = json.dumps(texts, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
        assert row["memory_set"] == memory_set(texts) == hashlib.sha256(whole).hexdigest()[:16]


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_labels_cover_every_memory_of_the_sample_once(name, sample):
    labels = load_labels(name)
    wanted = [(row["entry_id"], position) for row in sample for position in range(1, int(row["n_memories"]) + 1)]
    assert sorted(zip(labels["entry_id"], labels["position"], strict=True)) == sorted(wanted)
    assert len(sample) >= 60 and len(labels) >= 600
    allowed = {*load_taxonomy().names, "none"}
    for domain, acceptable in zip(labels["domain"], labels["acceptable"], strict=True):
        assert acceptable[0] == domain and {*acceptable} <= allowed and len(acceptable) <= 3
    assert labels["spans_domains"].dtype == bool and (labels["weight"] >= 1).all()


def test_the_reference_is_the_passes_where_they_agree_and_says_where_not():
    one, two, both = (load_labels(name) for name in ("pass_1", "pass_2", "reference"))
    columns = ["domain", "acceptable", "spans_domains"]
    for first, second, final in zip(*(side[columns].values.tolist() for side in (one, two, both)), strict=True):
        same = first[0] == second[0] and set(first[1]) == set(second[1]) and first[2] == second[2]
        assert not same or (final[0], set(final[1]), final[2]) == (first[0], set(first[1]), first[2])
    agreed = [a == b for a, b in zip(one[columns[::2]].values.tolist(), two[columns[::2]].values.tolist(), strict=True)]
    assert both.loc[both["decided"] == "agreed"].index.isin([k for k, same in enumerate(agreed) if same]).all()


def test_labels_of_finds_a_list_by_its_texts_and_refuses_others(benchmark):
    entry = labelled(benchmark)[0]
    texts = [memory.text for memory in entry.memories]
    known = load_labels().set_index("entry_id").loc[[entry.entry_id]].sort_values("position")
    assert labels_of(texts) == list(zip(known["domain"], known["acceptable"], strict=True))
    with pytest.raises(InputError, match="labels 0 of the"):
        labels_of(texts[::-1])
    with pytest.raises(InputError, match="fully|all of them"):
        labels_of([*texts, "User owns a kite."])


def test_labelled_entries_are_those_of_the_sample(benchmark, sample):
    assert {entry.entry_id for entry in labelled(benchmark)} == {row["entry_id"] for row in sample}
    assert len(labelled(benchmark[:20])) == 20


TWINS = [
    Entry("e1", ["User likes tea.", "User likes tea.", "Caf\u00e9", "Cafe\u0301"], "What now?"),
    Entry("e2", ["A"], "B?"),
]


def filled(tmp_path, rows=(("health", "health;social", "0"),) * 5, name="mine.csv"):
    sheet = label_sheet(TWINS)
    sheet[["domain", "acceptable", "spans_domains"]] = [list(row) for row in rows]
    path = tmp_path / name
    sheet.to_csv(path, index=False)
    return path


def test_a_sheet_filled_in_is_read_back_for_entries_with_twins(tmp_path):
    path = filled(tmp_path, [("health", "health", "0"), ("social", "social;health", "1"), *[("none", "none", "0")] * 3])
    table = load_labels(path)
    assert list(table["position"]) == [1, 2, 3, 4, 1] and table["weight"].eq(1).all()
    found = labels_of([memory.text for memory in TWINS[0].memories], path)
    assert found == [
        ("health", ("health",)),
        ("social", ("social", "health")),
        ("none", ("none",)),
        ("none", ("none",)),
    ]
    assert labelled(TWINS, path) == TWINS
    bare = tmp_path / "bare.csv"  # without memory_set an entry is found by its id
    load = path.read_text().splitlines()
    bare.write_text("\n".join(",".join(c for i, c in enumerate(line.split(",")) if i != 1) for line in load) + "\n")
    assert labelled(TWINS, bare) == TWINS
    with pytest.raises(InputError, match="none of the 1 entries"):
        labelled(TWINS[:1], "reference")
    assert labelled([], "reference") == []


def test_a_changed_file_is_read_again(tmp_path):
    path = filled(tmp_path)
    assert labels_of(["A"], path) == [("health", ("health", "social"))]
    path.write_text(path.read_text().replace("health;social", "legal").replace("health", "legal"))
    os.utime(path, ns=(1, 1))
    assert labels_of(["A"], path) == [("legal", ("legal",))]


def test_a_sample_beside_the_file_gives_weights_and_sets(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text(",".join(COLUMNS) + "\ne2,1,health,health,0\n")
    head = "entry_id,stratum,stratum_entries,stratum_sampled,weight,memory_set,n_memories\n"
    (tmp_path / "sample.csv").write_text(f'{head}e2,"a, b",8,2,4,{memory_set(["A"])},1\n')
    row = load_labels(path).iloc[0]
    assert (row["weight"], row["stratum"], row["memory_set"]) == (4.0, "a, b", memory_set(["A"]))
    assert labels_of(["A"], path) == [("health", ("health",))]


BAD = {
    "e1,1,helth,helth,0": "line 2: domain 'helth'; expected one of",
    "e1,0,health,health,0": "line 2: position is '0'; expected a whole number from 1",
    "e1,1,health,social;health,0": "acceptable starts with 'social'; expected the domain 'health' first",
    "e1,1,health,health;health,0": "expected one to 3 different domains",
    "e1,1,health,health;social;legal;finance,0": "expected one to 3 different domains",
    "e1,1,health,,0": "domain ''; expected one of",
    "e1,1,health,health,yes": "spans_domains is 'yes'; expected 0 or 1",
    ",1,health,health,0": "entry_id is empty",
    "e1,1,health,health": "another number of cells",
    "e1,1,health,health,0,9": "another number of cells",
    "e1,1,health,health,0\ne1,1,social,social,0": "line 3: entry 'e1' position 1 is on line 2 too",
    "": "holds no labels",
}


@pytest.mark.parametrize("rows", BAD, ids=range(len(BAD)))
def test_every_bad_row_is_named_by_file_line_found_and_expected(tmp_path, rows):
    path = tmp_path / "mine.csv"
    path.write_text(",".join(COLUMNS) + f"\n{rows}\n")
    with pytest.raises(InputError) as error:
        load_labels(path)
    assert BAD[rows] in str(error.value) and str(error.value).startswith("mine.csv")


def test_all_bad_rows_are_named_at_once(tmp_path):
    path = filled(tmp_path, [("helth", "helth", "0")] * 3 + [("health", "health", "2")] * 2)
    with pytest.raises(InputError) as error:
        load_labels(path)
    assert [line.split(":")[0] for line in str(error.value).splitlines()] == [f"mine.csv line {k}" for k in range(2, 7)]


@pytest.mark.parametrize(
    "text", ["entry_id,position\ne1,1\n", "", "entry_id,entry_id,position,domain,acceptable,spans_domains\n"]
)
def test_other_headers_and_files_are_refused(tmp_path, text):
    path = tmp_path / "mine.csv"
    path.write_text(text)
    with pytest.raises(InputError, match="mine.csv line 1"):
        load_labels(path)
    with pytest.raises(InputError, match="one of"):
        load_labels("pass_3")


def test_weights_positions_and_samples_that_cannot_be(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text(",".join(COLUMNS) + ",weight\ne2,1,health,health,0,nan\n")
    with pytest.raises(InputError, match="line 2: weight is 'nan'; expected a number above 0"):
        load_labels(path)
    path.write_text(",".join(COLUMNS) + "\ne2,2,health,health,0\n")
    head = "entry_id,stratum,stratum_entries,stratum_sampled,weight,memory_set,n_memories\n"
    (tmp_path / "sample.csv").write_text(f"{head}e2,s,8,2,4,x,1\n")
    with pytest.raises(InputError, match="line 2: position 2; the entry has 1 memories"):
        load_labels(path)
    (tmp_path / "sample.csv").write_text(f"{head}e2,s,8,2,-4,x,1\n")
    with pytest.raises(InputError, match="sample.csv line 2: weight '-4'"):
        load_labels(path)
