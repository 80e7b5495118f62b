"""The demo on the real built-in model, run twice; the committed notebooks are then still as committed (nbval)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import structmem as sm
from structmem import local
from structmem.errors import StructmemError

for package in ("papermill", "nbval"):
    pytest.importorskip(package, reason="the notebooks and test extras are not installed")
try:
    local.model_sha256(local.SMOLLM2)
    sm.load_entries("persistbench", limit=1)
except StructmemError as error:
    pytest.skip(f"built-in model or benchmark missing: {error}", allow_module_level=True)

REPOSITORY = Path(__file__).parents[1]


def test_demo_then_nbval(tmp_path):
    project = tmp_path / "a project é"
    for folder in ("notebooks", "data/recorded"):
        shutil.copytree(REPOSITORY / folder, project / folder)
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "IPYTHONDIR": str(tmp_path / "ipython")}
    env.pop("STRUCTMEM_STORE", None)

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", *arguments], cwd=project, env=env, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    made = int(re.search(r"Model calls made: (\d+)", run("structmem", "demo", "--limit", "1")).group(1))
    # Worked by hand for one entry of each type: flat twice, fixed, dynamic and tree with 3 answers each, 1 answer each
    # for sycophancy; rag 3; flat twice, fixed, dynamic, tree, rag with 1. Equal layouts share their answers.
    # Besides: an example under 3 layouts, and rag at another threshold for 2 entries.
    assert 0 < made <= 15 + 5 + 3 + 6 + 3 + 2
    results = sm.read_results(project / "data" / "results")
    assert len(results) == 15 + 5 + 3 + 6 and set(results["status"]) <= {"ok", "no_verdict"}
    assert (project / "data" / "store.sqlite").stat().st_mode & 0o077 == 0
    for asks_nobody in ("20_reductions", "30_figures"):  # they read results files, so the second run can do without
        (project / "notebooks" / f"{asks_nobody}.ipynb").unlink()
    said = run("structmem", "demo", "--limit", "1")
    assert "Model calls made: 0" in said and "Echo rates" in said
    assert run("structmem", "check", "runs", "data/results") == "runs: fine\ndata/results: fine\n"
    run("pytest", "-q", "-p", "no:cacheprovider", "--nbval", "notebooks/10_cross_domain.ipynb")
