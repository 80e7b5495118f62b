"""Files as they really arrive: encodings, line ends, cut and joined lines, layouts under the wrong name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from structmem.errors import InputError
from structmem.records import BadRecord, not_json, read_text, records_of

RECORDS = [{"n": 1, "text": "tea at the café"}, {"n": 2, "text": "x\u2028y\u0085z"}, {"n": 3}]
LINES = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in RECORDS)
ARRAY = json.dumps(RECORDS, ensure_ascii=False)


def read(folder: Path, content: str | bytes, name: str = "f.json") -> list[tuple[int, object]]:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return list(records_of(read_text(path)))


@pytest.mark.parametrize("name", ["f.json", "f.jsonl", "f.txt"])
@pytest.mark.parametrize(
    "content",
    [
        LINES,
        LINES.rstrip("\n"),
        LINES.replace("\n", "\r\n") + "\r\n\r\n",
        "\n\n" + LINES,
        LINES.encode("utf-8-sig"),
        LINES.encode("utf-16"),
        LINES.encode("utf-16-le"),
        LINES.encode("utf-32"),
        ARRAY,
        "\ufeff \n" + ARRAY + "\r\n",
        json.dumps(RECORDS, indent=2).replace("\n", "\r\n"),
        ARRAY.encode("utf-16"),
    ],
)
def test_every_layout_and_encoding_gives_the_same_records(name, content, tmp_path):
    assert [record for _, record in read(tmp_path, content, name)] == RECORDS


def test_joined_files_leave_a_byte_order_mark_inside(tmp_path):
    content = '{"n": 1}\n'.encode("utf-8-sig") + '{"n": 2}\n'.encode("utf-8-sig")
    assert read(tmp_path, content) == [(1, {"n": 1}), (2, {"n": 2})]


def test_line_numbers_are_those_of_an_editor(tmp_path):
    assert [line for line, _ in read(tmp_path, '\n{"n": 1}\n\n{"n": "a\u2028b"}\n{"n": 3}')] == [2, 4, 5]
    assert [line for line, _ in read(tmp_path, '[\n {"n": 1},\n\n {"n": [\n 2]}, {"n": 3}\n]')] == [2, 4, 5]
    assert read(tmp_path, '\n{\n "n": 1\n}\n') == [(2, {"n": 1})]


@pytest.mark.parametrize(
    ("content", "good", "line", "sentence"),
    [
        ('{"n": 1}\n{"n": 2}\n{"n": 3, "te', [1, 2], 3, "the file ends inside this line: it may have been cut"),
        ('{"n": 1}\n{"n": 2, {"n": 3}\n{"n": 4}\n', [1, 4], 2, "not JSON"),
        ('{"n": 1}\n{"n": 2}{"n": 3}\n{"n": 4}\n', [1, 4], 2, "more text after the record, from column 9"),
        ('{"n": 1}\nnotes\n{"n": 3}\n', [1, 3], 2, "not JSON"),
        ("plain text\n", [], 1, "not JSON"),
        ('{"n": 1\n{"n": 2}\n', [2], 1, "not JSON"),
        ('[{"n": 1}, {"n": 2}', [1, 2], 1, "the end of the file after this record; expected ',' or ']'"),
        ('[{"n": 1},\n{"n": 2}\n{"n": 3}]', [1, 2], 2, "'{' after this record; expected ',' or ']'"),
        ('[{"n": 1},\n]', [1], 2, "not JSON"),
        ('[{"n": 1}]\n[{"n": 2}]', [1], 2, "text after the array"),
        ('{\n "n": 1\n}\n{\n "n": 2\n}\n', [1], 4, "text after the object; expected an array"),
        ('{\n "n": 1,\n oops\n}\n', [], 1, "not JSON"),
        ('{"n": ' + "9" * 5000 + "}\n", [], 1, "not usable JSON"),
        ("[" * 100_000 + "\n", [], 1, "not usable JSON"),
    ],
)
def test_what_is_no_record_is_named_by_its_line_and_the_rest_is_kept(content, good, line, sentence, tmp_path):
    found = read(tmp_path, content)
    assert [record["n"] for _, record in found if not isinstance(record, BadRecord)] == good
    ((where, problem),) = [(number, record) for number, record in found if isinstance(record, BadRecord)]
    assert where == line and sentence in str(problem) and "expected" in str(problem)


def test_values_that_json_does_not_have_are_found_where_they_stand(tmp_path):
    ((_, record),) = read(tmp_path, '{"a": [1, NaN], "b": {"c": -Infinity}, "d": 1, "d": 2, "e": "NaN"}')
    places = [place for field, value in record.items() for place in not_json(value, field)]
    assert places == [("a item 2", "NaN"), ("b 'c'", "-Infinity"), ("d", "given 2 times")]


def test_bytes_that_do_not_decode_name_file_line_offset_and_advice(tmp_path):
    path = tmp_path / "old.json"
    path.write_bytes(b'{"n": 1}\n' + '{"n": "café"}\n'.encode("cp1252"))
    with pytest.raises(InputError) as caught:
        read_text(path)
    offset = path.read_bytes().index(b"\xe9")
    for part in ("old.json line 2", f"byte 0xe9 at offset {offset}", "expected UTF-8", "iconv -f cp1252"):
        assert part in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(InputError, match="nowhere.json: cannot be read"):
        read_text(tmp_path / "nowhere.json")


def test_encoding_does_not_depend_on_the_machines_locale(tmp_path):
    (tmp_path / "f.jsonl").write_bytes('{"query": "Où ?", "memories": ["thé vert"]}\n'.encode())
    code = "import sys; from structmem.data import load_entries; print(ascii(load_entries(sys.argv[1])[0].query))"
    result = subprocess.run(
        [sys.executable, "-X", "utf8=0", "-c", code, str(tmp_path / "f.jsonl")],
        env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.strip() == ascii("Où ?")
