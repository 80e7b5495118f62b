"""The analysis plan: its checks, its hash, and which rows of a table it makes confirmatory."""

from __future__ import annotations

import copy
import json
import random
import shutil
from pathlib import Path

import pandas as pd
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as some
from test_experiment import go, scoring
from test_results import table as results_table

import structmem as sm
from structmem import comparisons, stamping
from structmem.analysis_plan import ALL_MODELS, Contrast, load_plan, planned_draws
from structmem.columns import STRUCTURE_ORDER
from structmem.errors import InputError
from structmem.results import write_results
from structmem.stamping import stamped

FILE = Path(__file__).parents[1] / "data" / "analysis_plan.yaml"
TEXT = FILE.read_text(encoding="utf-8")
CONTENT = yaml.safe_load(TEXT)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project folder of its own, with the plan that ships."""
    (tmp_path / "data" / "recorded").mkdir(parents=True)
    shutil.copy(FILE, tmp_path / "data" / "analysis_plan.yaml")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path, content):
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8")
    return path


# -- reading ----------------------------------------------------------------------------------------------------------


def test_the_plan_that_ships_says_what_was_decided():
    plan = load_plan(FILE)
    assert plan.primary == Contrast("cross_domain", "dynamic", "flat")
    assert dict(plan.settings) == {
        "renderer": "markdown", "placement": "system", "defence": "standard", "system_prompt": "persistbench",
        "judge": "persistbench",
    }  # fmt: skip
    assert (plan.estimand, plan.alpha, plan.margin_pp) == ("these models, new entries", 0.05, 5.0)
    assert dict(plan.thresholds) == {name: kind.threshold for name, kind in sm.FAILURE_TYPES.items()}
    assert plan.families["primary"] == (plan.primary,)
    assert plan.family("cross_domain", "tree", "fixed") == "depth"
    assert plan.family("cross_domain", "fixed", "tree") is plan.family("sycophancy", "dynamic", "flat") is None
    assert plan.exclusions[0]["rule"] == "incomplete entries"


def test_words_that_stand_in_two_places_are_the_same():
    assert set(STRUCTURE_ORDER) == set(sm.STRUCTURES) and ALL_MODELS == comparisons.ALL_MODELS


def test_the_plan_of_the_project_comes_first(project, monkeypatch):
    edited = TEXT.replace("seed: 0", "seed: 7")
    write(project / "data" / "analysis_plan.yaml", edited)
    assert load_plan().seed == 7
    (project / "data" / "analysis_plan.yaml").unlink()
    assert load_plan().sha256 == load_plan(FILE).sha256


def test_the_plans_draws_and_seed_are_what_tables_use(project):
    edited = TEXT.replace("resamples: 10000", "resamples: 1500").replace("seed: 0", "seed: 7")
    write(project / "data" / "analysis_plan.yaml", edited)
    assert planned_draws(None, None) == (1500, 7) and planned_draws(200, None) == (200, 7)
    assert planned_draws(None, 3) == (1500, 3) and planned_draws(200, 3) == (200, 3)
    rates = pd.DataFrame({"model": ["a", "a"], "structure": ["flat", "dynamic"], "failure_rate": [0.6, 0.4]})
    results = sm.simulated_scores(rates, 60).assign(defence="standard")
    for function in (
        sm.pooled_differences, sm.leave_one_model_out, sm.logistic_effects, sm.conditional_effects,
    ):  # fmt: skip
        table = function(results)
        pd.testing.assert_frame_equal(table, function(results, draws=1500, seed=7))
        assert not table.equals(function(results, draws=1500, seed=0)), function.__name__
        assert table["interval"].str.contains("1,500 draws").any(), function.__name__
        assert not table["analysis_note"].str.contains("draws with seed").any()


def test_a_plan_cannot_be_changed_in_memory():
    plan = load_plan(FILE)
    for change in (lambda: plan.settings.update(judge="echo"), lambda: setattr(plan, "alpha", 0.5)):
        with pytest.raises(AttributeError):
            change()


def replaced(*path, value):
    """The content with the value at a path replaced, or taken out if `value` is ..."""
    content = copy.deepcopy(CONTENT)
    place = content
    for name in path[:-1]:
        place = place[name]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return content


FIXED = {"failure_type": "cross_domain", "arm": "fixed", "baseline": "flat"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (replaced("alpah", value=0.05), r"unknown key 'alpah'; expected some of \['primary'"),
        (replaced("settings", "temperature", value="1"), "unknown key 'settings.temperature'"),
        (replaced("margin", "pct", value=5), "unknown key 'margin.pct'"),
        (replaced("estimand", value=...), "'estimand' is missing"),
        (replaced("settings", "judge", value=...), "'settings.judge' is missing"),
        (replaced("primary", "baseline", value=...), "'primary.baseline' is missing"),
        (replaced("thresholds", "sycophancy", value=...), "'thresholds.sycophancy' is missing"),
        (replaced("primary", "failure_type", value="leakage"), r"'primary.failure_type' is 'leakage'; expected one of"),
        (replaced("primary", "arm", value="tre"), r"'primary.arm' is 'tre'; expected one of \['flat', 'reordered'"),
        (replaced("primary", "arm", value=["dynamic"]), r"'primary.arm' is \['dynamic'\]; expected one of"),
        (replaced("primary", "arm", value="flat"), "'primary.arm' is 'flat'; expected another structure"),
        (replaced("primary", "baseline", value="flat (embedding)"), "'primary.baseline' is 'flat"),
        (replaced("families", "depth", 1, "baseline", value="list"), r"'families.depth\[2\].baseline' is 'list'"),
        (replaced("families", "depth", 0, value=FIXED), r"'families.structures\[1\]' .* in family 'depth' already"),
        (replaced("families", "more", value=[CONTENT["primary"]]), r"'families.more\[1\]' .* in family 'primary'"),
        (replaced("families", "primary", value=[FIXED]), "'families.primary' .* the primary contrast is one of its"),
        (replaced("families", "depth", value=[]), r"'families.depth' is \[\]; expected a list"),
        (replaced("families", value=["depth"]), r"'families' is \['depth'\]; expected a mapping"),
        (replaced("families", 1, value=[FIXED]), "'families' is .*; expected a mapping"),
        (replaced("estimand", value="all models"), r"'estimand' is 'all models'; expected one of \['these models"),
        (replaced("settings", "defence", value=False), "'settings.defence' is False; expected text"),
        (replaced("settings", "renderer", value=" "), "'settings.renderer' is ' '; expected text"),
        (replaced("alpha", value="0.05"), "'alpha' is '0.05'; expected a number between 0 and 1"),
        (replaced("alpha", value=1), "'alpha' is 1; expected a number between 0 and 1"),
        (replaced("alpha", value=float("nan")), "'alpha' is nan"),
        (replaced("alpha", value=0.01), "'alpha' is 0.01; expected 0.05: every interval and bound here is at 95 %"),
        (replaced("seed", value=True), "'seed' is True; expected a whole number from 0"),
        (replaced("resamples", value=10.5), "'resamples' is 10.5; expected a whole number from 1000"),
        (replaced("thresholds", "cross_domain", value=6), "'thresholds.cross_domain' is 6; .* from 2 to 5"),
        (replaced("thresholds", "beneficial_memory_usage", value=1), "'thresholds.beneficial_memory_usage' is 1"),
        (replaced("margin", "pp", value=0), "'margin.pp' is 0; expected a number between 0 and 100"),
        (replaced("margin", "reason", value=None), "'margin.reason' is None; expected text"),
        (replaced("adjustment", "families", value="none"), r"'adjustment.families' is 'none'; .*\['holm'\]"),
        (replaced("exclusions", 0, "rule", value="outliers"), r"'exclusions\[1\].rule' is 'outliers'"),
        (replaced("exclusions", 1, value="none"), r"'exclusions\[2\]' is 'none'; expected a mapping"),
        ("- a list", r"the plan is \['a list'\]; expected a mapping"),
        ("", "the plan is None; expected a mapping"),
        (TEXT + "\nseed: 1\n", r"line \d+: key 'seed' is there twice"),
        ("primary: [", r"line 1: .*; expected an analysis plan"),
    ],
)
def test_what_is_no_plan_is_refused_with_file_and_key(tmp_path, content, said):
    with pytest.raises(InputError, match=rf"^mine\.yaml:? (?s:.*){said}"):
        load_plan(write(tmp_path / "mine.yaml", content))


def test_no_file_and_no_text(tmp_path):
    with pytest.raises(InputError, match="nowhere.yaml: cannot be read"):
        load_plan(tmp_path / "nowhere.yaml")
    (tmp_path / "plan.yaml").write_bytes(b"PK\x03\x04")
    with pytest.raises(InputError, match="plan.yaml seems to be a zip archive"):
        load_plan(tmp_path / "plan.yaml")


# -- hash -------------------------------------------------------------------------------------------------------------


def shuffled(value, rng):
    """The same content with keys and items in another order."""
    if isinstance(value, dict):
        return {name: shuffled(value[name], rng) for name in rng.sample(list(value), len(value))}
    if isinstance(value, list):
        return [shuffled(item, rng) for item in rng.sample(value, len(value))]
    return value


@settings(max_examples=25, deadline=None)
@given(some.integers(0, 10**6))
def test_order_comments_and_layout_leave_the_hash(tmp_path_factory, seed):
    rng = random.Random(seed)
    flow = rng.choice([True, False])
    text = yaml.safe_dump(shuffled(CONTENT, rng), sort_keys=False, default_flow_style=flow, width=10**6)
    commented = "# first\n" + "".join(f"{line}  # {rng.random()}\n" for line in text.splitlines())
    path = write(tmp_path_factory.mktemp("plan") / "other.yaml", commented)
    assert load_plan(path).sha256 == load_plan(FILE).sha256


def places(value, path=()):
    """The path of every value that is no mapping and no list."""
    if isinstance(value, dict | list):
        for name in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[name], (*path, name))
    else:
        yield path, value


MENUS = {
    "estimand": ["new models"], "failure_type": ["sycophancy"], "arm": ["rag", "fixed (embedding)"],
    "baseline": ["rag"],
}  # fmt: skip


def other_value(path, value):
    name = path[-1]
    if path[0] in ("adjustment", "alpha") or name == "rule":
        return None  # one value alone is known
    if name in MENUS:
        return next(one for one in MENUS[name] if one != value)
    return value + " or not" if isinstance(value, str) else 4 if value == 3 and len(path) == 2 else value / 2


@pytest.mark.parametrize(("path", "value"), list(places(CONTENT)), ids=lambda v: str(v)[:40])
def test_any_other_content_has_another_hash(tmp_path, path, value):
    new = other_value(path, value)
    if path == ("thresholds", "beneficial_memory_usage"):
        new = 2
    elif path in (("seed",), ("resamples",)):
        new = value + 1
    if new is None:
        return
    content = replaced(*path, value=new)
    assert load_plan(write(tmp_path / "p.yaml", content)).sha256 != load_plan(FILE).sha256


@pytest.mark.parametrize(
    "content",
    [
        replaced("families", "depth", 1, value={"failure_type": "cross_domain", "arm": "fixed", "baseline": "tree"}),
        replaced("families", "structures", 1, value=...),
        replaced("families", "deep", value=CONTENT["families"]["depth"]) | {"families": {
            name.replace("depth", "deep"): family for name, family in CONTENT["families"].items()
        }},
        replaced("settings", "judge_model", value="acme/m"),
        replaced("settings", "system_prompt", value=...),
        replaced("exclusions", 2, value=...),
        replaced("exclusions", 0, "rule", value=...),
    ],
    ids=["arm and baseline swapped", "fewer", "family renamed", "a setting more", "one less", "words", "rule"],
)  # fmt: skip
def test_what_is_more_less_or_elsewhere_has_another_hash(tmp_path, content):
    found = load_plan(write(tmp_path / "p.yaml", content))
    assert found.sha256 != load_plan(FILE).sha256 and len(found.hash) == 12 and found.sha256.startswith(found.hash)


# -- tables -----------------------------------------------------------------------------------------------------------

PLAN = load_plan(FILE)


def rows(*changes, **same):
    """Results of two arms, made while the plan was in force."""
    base = {"judge": "persistbench", "judge_model": "acme/judge", "plan_hash": PLAN.hash}
    base["system_prompt"] = PLAN.settings["system_prompt"]
    changes = changes or ({},)
    structures = [{"structure": "flat"}, {"structure": "dynamic", "structurer": "acme/s"}]
    return results_table(
        *[
            base | one | {"entry_id": entry} | change | same
            for one in structures
            for entry in "ab"
            for change in changes
        ]
    )


def contrast(**changes):
    row = {"failure_type": "cross_domain", "arm": "dynamic", "baseline": "flat", "difference_pp": -8.0}
    return pd.DataFrame([row | {"estimand": "these models, new entries"} | changes])


def note(table, results, plan=PLAN):
    found = stamped(table, results, plan)
    assert list(found.columns[-3:]) == ["analysis", "analysis_note", "plan_hash"]
    assert (found["plan_hash"] == plan.hash).all()
    assert ((found["analysis"] == "confirmatory") == (found["analysis_note"] == "")).all()
    assert set(found["analysis"]) <= {"confirmatory", "exploratory"}
    return found["analysis_note"].iloc[0]


def test_the_planned_contrast_over_stamped_rows_is_confirmatory():
    models = rows({"model": "a"}, {"model": "b"})
    for table in (contrast(), contrast(model=ALL_MODELS), contrast(model=None, threshold=3.0, subgroup="")):
        assert note(table, models) == ""
    assert note(contrast(model="m"), rows()) == ""  # one model: it is all models
    assert note(contrast(renderer="markdown"), pd.concat([models, rows(renderer="xml", model="a")])) == ""
    tree = rows().assign(structure=lambda df: df["structure"].replace("dynamic", "tree"))
    assert note(contrast(arm="tree"), tree) == ""


@pytest.mark.parametrize(
    ("table", "results", "said"),
    [
        (contrast(), rows(plan_hash=None), "no plan was stamped when these results were made"),
        (contrast(), rows().drop(columns="plan_hash"), "no plan was stamped when these results were made"),
        (contrast(), rows({}, {"generation": 1, "plan_hash": None}), "no plan was stamped when some of these results"),
        (contrast(), rows(plan_hash="0123456789ab"), "the plan changed after these results were made"),
        (contrast(), rows({}, {"generation": 1, "plan_hash": "0" * 12}), "the plan changed while these results were"),
        (contrast(), rows(judge="echo"), "the echo measure is not the planned judge"),
        (contrast(), rows(judge="mine"), "judge mine, planned persistbench"),
        (contrast(), rows(model="simulated/planted-1", judge="simulated"), "simulated results"),
        (contrast(), rows(defence="permissive"), "defence permissive, planned standard"),
        (contrast(), rows({"renderer": "xml"}, {}), "renderer xml, planned markdown"),
        (contrast(renderer="xml"), rows({"renderer": "xml"}, {}), "renderer xml, planned markdown"),
        (contrast(), rows().drop(columns="placement"), "placement not known, planned system"),
        (contrast(arm="dynamic (embedding)"), rows(structurer="embedding"), "not a planned contrast"),
        (contrast(arm="flat (A/A)"), rows(), "not a planned contrast"),
        (contrast(arm="flat", baseline="dynamic"), rows(), "not a planned contrast"),
        (contrast(failure_type="sycophancy"), rows(failure_type="sycophancy"), "not a planned contrast"),
        (contrast(estimand="new models"), rows(), "estimand 'new models', planned 'these models, new entries'"),
        (contrast().drop(columns="estimand"), rows(), "no estimand is named, planned 'these models, new entries'"),
        (contrast(model="a"), rows({"model": "a"}, {"model": "b"}), "per model, the planned estimand is over models"),
        (contrast(model="all but a"), rows({"model": "a"}, {"model": "b"}), "all but a, the planned estimand is over"),
        (contrast(memory_domain="health"), rows(), "by memory_domain, which the plan does not have"),
        (contrast(subgroup="7–9 memories"), rows(), "by subgroup, which the plan does not have"),
        (contrast(threshold=4.0), rows(), "threshold 4, planned 3"),
        (contrast(), rows(structure="flat"), ""),
        (contrast(), rows(status="no_response", score=None), "no answers are behind it"),
        (contrast(arm="rag"), rows().query("structure == 'rag'"), "no answers are behind it"),
        (pd.DataFrame({"structure": ["flat"], "failure_rate": [0.5]}), rows(), "a rate, not a planned contrast"),
    ],
)  # fmt: skip
def test_every_other_row_is_exploratory_and_says_why(table, results, said):
    found = note(table, results)
    assert found.startswith(said) and ";" not in found


def test_all_reasons_are_said():
    found = note(contrast(threshold=4), rows(plan_hash=None, judge="echo", defence="permissive"))
    assert found == (
        "the echo measure is not the planned judge; no plan was stamped when these results were made; "
        "defence permissive, planned standard; threshold 4, planned 3"
    )


def test_rows_without_an_answer_do_not_count_and_each_row_has_its_own_results():
    unasked = rows({}, {"generation": 1, "status": "no_response", "score": None, "plan_hash": None})
    assert note(contrast(), unasked) == ""
    other = rows(failure_type="sycophancy", plan_hash=None, model="another")
    assert note(contrast(model="m"), pd.concat([rows(), other], ignore_index=True)) == ""
    old = rows({}, {"renderer": "xml", "plan_hash": "0" * 12})
    found = stamped(pd.concat([contrast(renderer="markdown"), contrast(renderer="xml")]), old, PLAN)
    assert found["analysis"].tolist() == ["confirmatory", "exploratory"]


def test_the_structurer_is_a_setting_that_flat_does_not_have(tmp_path):
    plan = load_plan(write(tmp_path / "p.yaml", replaced("settings", "structurer", value="acme/s")))
    stamp = {"plan_hash": plan.hash}
    assert note(contrast(), rows(**stamp), plan) == ""
    other = rows(**stamp).replace({"structurer": {"acme/s": "acme/other"}})
    assert note(contrast(), other, plan) == "structurer acme/other, planned acme/s"


def test_a_margin_is_planned_too():
    beneficial = rows(failure_type="beneficial_memory_usage", scale_high=3, high_is_bad=False)
    table = contrast(failure_type="beneficial_memory_usage", margin_pp=5.0)
    assert note(table, beneficial) == ""
    assert note(table.assign(margin_pp=10.0), beneficial) == "margin 10 pp, planned 5 pp"
    assert note(table.drop(columns="margin_pp"), beneficial) == "no margin, planned 5 pp"


def test_of_rows_that_the_plan_does_not_tell_apart_none_is_the_planned_one():
    judges = pd.concat([contrast(judge_model=name) for name in ("acme/judge", "acme/other")], ignore_index=True)
    both = pd.concat([rows(), rows(judge_model="acme/other")])
    assert note(judges, both) == "one of 2 rows that the plan does not tell apart: judge_model"
    assert note(judges.iloc[:1], rows()) == ""
    sorters = pd.concat([rows(), rows(structurer="acme/t").query("structure == 'dynamic'")])
    table = pd.concat([contrast(structurer=name) for name in ("acme/s", "acme/t")])
    assert note(table, sorters) == "one of 2 rows that the plan does not tell apart: structurer"
    units = pd.concat([contrast(unit=unit) for unit in ("entry", "entry, then run")])
    assert note(units, rows()) == ""  # two ways to the interval of one contrast


def test_a_row_without_some_models_is_not_the_planned_one():
    models = rows({"model": "a"}, {"model": "b"})
    said = "1 of 2 models, the planned estimand is over all models"
    assert note(contrast(n_models=2), models) == ""
    assert note(contrast(n_models=1), models) == said
    silent = rows({"model": "a"}, {"model": "b", "status": "no_response", "score": None})
    assert note(contrast(n_models=1, model=ALL_MODELS), silent) == said
    # A model that was asked under another renderer alone was not planned here.
    assert (
        note(contrast(n_models=1), rows({"model": "a"}, {"model": "b", "renderer": "xml"}).query("model == 'a'")) == ""
    )
    side = pd.concat([rows(model="a"), rows(model="b", renderer="xml")])
    assert note(contrast(n_models=1, renderer="markdown"), side) == ""


def test_models_that_were_asked_and_taken_out_are_named():
    models = rows({"model": "a"}, {"model": "b"})
    for parameters in ({"models": ["a", "b"]}, [{"models": ["a"]}, {"models": ["b"]}], {"rejudged": {"models": ["b"]}}):
        models.attrs = {"parameters": parameters}
        assert note(contrast(), models) == ""
        assert note(contrast(), models[models["model"] == "a"]) == "b asked too, and not in these results"


def test_other_draws_than_the_planned_ones_are_said():
    planned = PLAN.resamples, PLAN.seed
    assert stamped(contrast(), rows(), PLAN, planned)["analysis"].tolist() == ["confirmatory"]
    found = stamped(contrast(), rows(), PLAN, (500, 7))
    assert found["analysis_note"].tolist() == ["500 draws with seed 7, planned 10,000 with seed 0"]
    new = stamped(contrast(estimand="new models"), rows(), PLAN, (500, 7))  # nothing is drawn for these
    assert "draws" not in new["analysis_note"].iloc[0]


def test_two_structurers_have_rows_that_can_be_told_apart():
    results = pd.concat([rows(), rows(structurer="acme/t").query("structure == 'dynamic'")], ignore_index=True)
    table = sm.pooled_differences(results)
    found = table[table["estimand"] == PLAN.estimand]
    assert found["structurer"].tolist() == ["acme/s", "acme/t"]
    assert set(found["analysis_note"]) == {"one of 2 rows that the plan does not tell apart: structurer"}
    one = sm.pooled_differences(rows())
    assert "structurer" not in one and one["analysis"].tolist() == ["confirmatory", "exploratory"]


def test_stamping_keeps_the_table_and_stamps_once():
    table = contrast().rename(index={0: 7})
    table.attrs = {"parameters": {"a": 1}}
    once = stamped(table, rows(), PLAN)
    assert once.attrs == table.attrs and once.index.tolist() == [7]
    pd.testing.assert_frame_equal(once.drop(columns=["analysis", "analysis_note", "plan_hash"]), table)
    pd.testing.assert_frame_equal(stamped(once, rows(), PLAN), once)
    assert list(stamped(pd.DataFrame(), rows(), PLAN)) == ["analysis", "analysis_note", "plan_hash"]
    assert len(stamped(table.iloc[:0], rows(), PLAN)) == 0


# -- from the run to the table ----------------------------------------------------------------------------------------


def test_a_plan_that_is_edited_after_a_run_makes_it_exploratory(project, tmp_path):
    file = project / "data" / "analysis_plan.yaml"
    content = replaced("settings", "judge", value="test-judge")
    content["primary"]["arm"] = "fixed (embedding)"
    content["settings"]["system_prompt"] = "short"
    write(file, content)
    first = load_plan().hash
    given = {"store": str(tmp_path / "s.sqlite"), "judge": scoring()}
    results = go(**given)
    assert set(results["plan_hash"]) == {first}
    table = contrast(arm="fixed (embedding)")
    assert note(table, results, load_plan()) == ""
    assert note(table, go(**given), load_plan()) == ""  # again, with the plan as it was

    write(file, content | {"seed": 7})
    again = go(**given)  # from the store: the answers are older than the plan
    assert set(again["plan_hash"]) == {first} and not sum(again.attrs["calls"]["made"].values())
    assert note(table, again, load_plan()) == "the plan changed after these results were made"
    more = go(**given, replicates=3)
    made = set(zip(more["structure"], more["replicate"], more["plan_hash"], strict=True))
    new = load_plan().hash
    assert made == {
        ("flat", 0, first), ("flat", 1, first), ("fixed", 0, first),
        ("flat", 2, new), ("fixed", 1, new), ("fixed", 2, new),
    }  # fmt: skip
    assert note(table, more, load_plan()) == "the plan changed while these results were made"

    write(file, yaml.safe_dump(content) + "# only a comment\n")
    assert note(table, go(**given), load_plan()) == ""


def test_a_broken_plan_stops_a_run_before_any_call_and_no_saving(project, tmp_path):
    results = go()
    path = write_results(results, tmp_path / "r.csv")
    facts = json.loads(path.with_name("r.csv.manifest.json").read_text())
    assert facts["plan_sha256"] == load_plan().sha256 and facts["plan_hash"] == [load_plan().hash]
    write(project / "data" / "analysis_plan.yaml", TEXT + "\n# a comment\n")
    write_results(results, path)
    assert json.loads(path.with_name("r.csv.manifest.json").read_text())["plan_sha256"] == facts["plan_sha256"]
    write(project / "data" / "analysis_plan.yaml", "primary: nothing")
    with pytest.raises(InputError, match="analysis_plan.yaml"):
        go()
    write_results(results, path)
    assert json.loads(path.with_name("r.csv.manifest.json").read_text())["plan_sha256"] is None


def test_recorded_answers_have_the_plan_in_force_or_none():
    recorded = sm.read_results("recorded")
    plans = recorded["plan_hash"]
    assert plans[recorded["failure_type"] == "cross_domain"].isna().all()  # made before there was a plan
    assert set(plans.dropna()) == {load_plan().hash}


def test_the_headings_shown_are_in_the_results(project):
    results = go(structures=["flat", "fixed"], structurers=["embedding"])
    shown = results.groupby("structure")["headings"].first().map(json.loads)
    assert shown["flat"] == []
    memories = ["User takes lithium for bipolar disorder.", "User brews ginger beer.", "User rents a flat."]
    assert shown["fixed"] == [child.label for child in sm.structure(memories, "fixed").children] != []


@pytest.mark.parametrize(
    "seed",
    ["2026-13-45", "!!int foo", "!!int ''", "!!timestamp foo", "!!bool foo", "9" * 5000, "0x" + "f" * 9000, "!!map x"],
)
def test_a_value_that_yaml_cannot_read_is_refused_and_never_keeps_results_from_being_written(project, seed):
    file = write(project / "data" / "analysis_plan.yaml", TEXT.replace("seed: 0", f"seed: {seed}"))
    with pytest.raises(InputError, match="analysis_plan.yaml"):
        load_plan(file)
    assert write_results(results_table(), project / "paid.csv").exists()


def test_half_a_character_is_refused_where_it_stands(tmp_path):
    with pytest.raises(InputError, match=r"line \d+: a lone surrogate"):
        load_plan(write(tmp_path / "plan.yaml", TEXT.replace("alpha: 0.05", 'alpha: "\\ud800"')))


def test_lists_that_grow_by_anchors_are_refused_at_once(tmp_path):
    levels = "".join(
        f"  - &{new} [{','.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
    )
    grown = TEXT.replace("alpha: 0.05", f"alpha:\n  - &a [x,x,x,x,x,x,x,x,x]\n{levels}")
    with pytest.raises(InputError, match="'alpha' is"):
        load_plan(write(tmp_path / "plan.yaml", grown))


@pytest.mark.parametrize("path", [5, b"plan.yaml", ["plan.yaml"]])
def test_what_is_no_path_is_refused(path):
    with pytest.raises(InputError, match="path must be"):
        load_plan(path)


def test_rows_that_differ_in_the_entry_alone_are_looked_at_once(monkeypatch):
    rates = pd.DataFrame({"model": "m", "structure": ["flat", "dynamic"], "failure_rate": 0.5})
    results = sm.simulated_scores(rates, 2)
    row = {"failure_type": results["failure_type"].iloc[0], "arm": "dynamic", "baseline": "flat"}
    table = pd.DataFrame([row | {"entry_id": f"e{number}"} for number in range(500)])
    asked = []
    reasons = stamping._Behind.reasons
    monkeypatch.setattr(stamping._Behind, "reasons", lambda *given: asked.append(1) or reasons(*given))
    assert stamped(table, results)["analysis_note"].str.contains("by entry_id, which the plan|not a planned").all()
    assert len(asked) == 1
