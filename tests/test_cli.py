"""cli: commands, one sentence per error, exit statuses, quick help."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from structmem import cli
from structmem.errors import SetupError
from structmem.memoryfiles import load_memories


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    status = cli.main(arguments)
    out, err = capsys.readouterr()
    return status, out, err


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STRUCTMEM_STORE", raising=False)
    monkeypatch.setattr(cli, "_plain_warnings", lambda: None)
    return tmp_path


@pytest.mark.parametrize(
    "content",
    ['["User brews ginger beer.", "User rents a flat."]', "User brews ginger beer.\n\nUser rents a flat.\n"],
)
def test_structure_prints_the_context(capsys, elsewhere, content):
    (elsewhere / "memories").write_text(content)
    status, out, err = run(capsys, "structure", "memories", "--structure", "flat", "--renderer", "bullets")
    assert (status, err) == (0, "")
    assert out == "<memories>\n- User brews ginger beer.\n- User rents a flat.\n</memories>\n"


@pytest.mark.parametrize("name", ["fixed", "dynamic", "tree"])
def test_structure_keeps_every_memory_offline(capsys, elsewhere, name):
    memories = ["User takes lithium every morning.", "User rents a flat near the depot.", "User's son plays football."]
    (elsewhere / "m.json").write_text(json.dumps(memories))
    status, out, _ = run(capsys, "structure", "m.json", "--structure", name)
    assert status == 0 and all(memory in out for memory in memories)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("structure", "nothing.txt"), r"nothing.txt: cannot be read \(No such file"),
        (("structure", "m.txt", "--structure", "tre"), "structure must be one of .*'tree'.*got 'tre'"),
        (("structure", "m.txt", "--renderer", "html"), "renderer must be one of .*got 'html'"),
        (("structure", "m.txt", "--taxonomy", "none"), "taxonomy"),
        (("structure", "m.txt", "--structure", "rag"), "query"),
        (("structure", "latin.txt"), "latin.txt line 1: byte 0xe9 .* expected UTF-8"),
        (("structure", "dict.json"), "expected a JSON list of strings"),
        (("structure", "half.json"), "looks like JSON"),
        (("structure", "deep.json"), "looks like JSON"),
        (("structure", "x" * 5000), "cannot be read"),
        (("notebooks", "copy", "m.txt"), "m.txt/notebooks.* cannot be written"),
        (("store", "export", "out.jsonl", "--store", "calls.jsonl"), "JSON lines already"),
        (("run", "10_cross_domain", "-p", "limit"), "NAME=VALUE"),
        (("check", "nowhere"), "nothing at nowhere"),
        (("store", "info"), "There is no store"),
    ],
)
def test_errors_are_one_sentence_on_stderr(capsys, elsewhere, arguments, says):
    (elsewhere / "m.txt").write_text("User rents a flat.\n")
    (elsewhere / "latin.txt").write_bytes("Caf\xe9".encode("latin-1"))
    (elsewhere / "dict.json").write_text('{"a": 1}')
    (elsewhere / "half.json").write_text('["a", ')
    (elsewhere / "deep.json").write_text("[" * 100_000)
    (elsewhere / "calls.jsonl").write_text("")
    status, out, err = run(capsys, *arguments)
    assert status == 2 and out == "" and err.startswith("structmem: ") and "Traceback" not in err
    assert re.search(says, err), err


@pytest.mark.parametrize(
    ("error", "status", "says"),
    [(KeyboardInterrupt(), 130, "finished calls are kept"), (SetupError("no key"), 2, "structmem: no key")],
)
def test_exit_status_of_interruptions_and_errors(capsys, monkeypatch, error, status, says):
    def fail(options):
        raise error

    monkeypatch.setattr(cli, "_demo", fail)
    found, _, err = run(capsys, "demo")
    assert found == status and says in err


@pytest.mark.parametrize("arguments", [("demo", "--limit", "-1"), ("demo", "--limit", "x"), ("nope",), (), ("local",)])
def test_usage_errors_are_argparse_own(capsys, arguments):
    with pytest.raises(SystemExit) as found:
        cli.main(arguments)
    assert found.value.code == 2


def test_run_hands_parameters_on_as_text(capsys, monkeypatch):
    seen = {}
    monkeypatch.setattr("structmem.notebooks.run_notebook", lambda *given: seen.setdefault("given", given))
    assert run(capsys, "run", "10", "-p", "limit=5", "-p", "source=a=b", "-o", "out.ipynb")[0] == 0
    assert seen["given"] == ("10", {"limit": "5", "source": "a=b"}, "out.ipynb")


def test_store_info_and_export(capsys, elsewhere):
    from structmem.store import Store

    Store(elsewhere / "calls.sqlite").close()
    status, out, _ = run(capsys, "store", "info", "--store", "calls.sqlite")
    assert status == 0 and "schema_version" in out and "none" in out
    status, out, _ = run(capsys, "store", "export", "out.jsonl", "--store", "calls.sqlite")
    assert (status, out) == (0, "0 calls written to out.jsonl (for you only: answers may quote memories).\n")


def test_study_needs_someone_to_confirm(capsys, monkeypatch):
    monkeypatch.setattr("structmem.studies.study", lambda *_, confirm, **__: (None, 0 if confirm("Run it?") else 1))
    monkeypatch.setattr("sys.stdin", io.StringIO())
    status, _, err = run(capsys, "study", "openai/x", "1")
    assert status == 2 and "--yes" in err
    assert run(capsys, "study", "openai/x", "1", "--yes")[0] == 0


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from structmem.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print([m for m in ('pandas', 'numpy', 'litellm', 'scipy', 'yaml') if m in sys.modules])"
    )
    source = str(Path(cli.__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": source}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert found.stdout.endswith("[]\n") and "usage: structmem" in found.stdout


@pytest.mark.parametrize(
    ("data", "memories"),
    [
        (b'[2024] moved to Oslo\n"Dune" is a favourite\n', ["[2024] moved to Oslo", '"Dune" is a favourite']),
        (b"1984\n", ["1984"]),
        ("Prüft alles\r\n\r\nläuft\r\n".encode("utf-16"), ["Prüft alles", "läuft"]),
    ],
)
def test_lines_that_only_look_like_json_are_memories(tmp_path, data, memories):
    (tmp_path / "m é.txt").write_bytes(data)
    assert [memory.text for memory in load_memories(tmp_path / "m é.txt")] == memories


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_one_sentence(tmp_path):
    (tmp_path / "m.txt").write_text("User runs.\n")
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "structmem", "structure", str(tmp_path / "m.txt"), "--structure", "flat"]
        ended = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=Path(cli.__file__).parents[1]
        )
    assert ended.returncode == 2 and ended.stderr.startswith("structmem: ") and ended.stderr.count("\n") == 1
