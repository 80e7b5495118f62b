"""The published grid and what is recomputed from it, against known answers and other ways of computing."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests

from structmem.errors import InputError
from structmem.paths import package_file
from structmem.published import load_published, load_published_aggregates, published_reductions
from structmem.tables import show


def rates(structure, defence="standard", failure_type="cross_domain"):
    """Per-model rates in percent, read from the file without the loader."""
    table = pd.read_csv(package_file("published", "failure_rates.csv"))
    cells = table.query("structure == @structure and defence == @defence and failure_type == @failure_type")
    return cells.set_index("model")["failure_rate_pct"].sort_index()


def over(structure, defence="standard", failure_type="cross_domain", baseline="flat"):
    table = published_reductions(defence, failure_type, baseline)
    return table[(table["model"] == "all models") & (table["structure"] == structure)].iloc[0]


def test_the_grid_is_whole_and_sourced():
    table = load_published()
    assert len(table) == 329
    assert table.groupby("failure_type").size().to_dict() == {
        "beneficial_memory_usage": 112, "cross_domain": 112, "sycophancy": 105
    }  # fmt: skip
    assert not table.duplicated(["model", "structure", "defence", "failure_type"]).any()
    assert table["source"].isin(["figure-script", "figure-script-tree"]).all()
    # tree exists under standard only and without sycophancy; rag has no per-model rates.
    tree = table[table["structure"] == "tree"]
    assert set(tree["defence"]) == {"standard"} and "sycophancy" not in set(tree["failure_type"])
    assert set(table["structure"]) == {"flat", "fixed", "dynamic", "tree"}
    assert table["failure_rate"].between(table["low"], table["high"]).all()


def test_nine_rates_fit_199_entries():
    table = load_published()
    off = table[(table["failure_rate_pct"] * table["n_entries"] / 100) % 1 != 0]
    assert len(off) == 9 and (off["note"].str.contains("199")).all() and (table["note"] != "").sum() == 9
    assert all(any(round(100 * k / 199, 1) == rate for k in range(200)) for rate in off["failure_rate_pct"])


@pytest.mark.parametrize(
    ("structure", "difference", "interval", "t_p", "exact_p", "down", "up"),
    [
        ("dynamic", -8.79, (-12.8, -4.7), 0.0018, 0.0156, 7, 0),
        ("fixed", -5.93, (-11.2, -0.7), 0.033, 0.047, 6, 1),
        ("tree", -4.07, (-7.6, -0.5), 0.031, 0.047, 6, 1),
    ],
)
def test_known_answers_against_flat(structure, difference, interval, t_p, exact_p, down, up):
    row = over(structure)
    assert round(row["difference_pp"], 2) == difference
    assert (round(row["low_pp"], 1), round(row["high_pp"], 1)) == interval
    assert row["t_p"] == pytest.approx(t_p, abs=5e-4) and row["sign_flip_p"] == pytest.approx(exact_p, abs=5e-4)
    assert (row["n_models_down"], row["n_models_up"], row["n_models"]) == (down, up, 7)
    assert row["smallest_p"] == 1 / 64
    # The same by scipy, from the file.
    differences = rates(structure) - rates("flat")
    test = stats.ttest_rel(rates(structure), rates("flat"))
    assert row["t_p"] == pytest.approx(test.pvalue)
    assert (row["low_pp"], row["high_pp"]) == pytest.approx(tuple(test.confidence_interval()))
    assert row["sd_pp"] == pytest.approx(np.std(differences, ddof=1))
    flips = stats.permutation_test(
        (differences.to_numpy(),), np.mean, permutation_type="samples", n_resamples=np.inf, alternative="two-sided"
    )
    assert row["sign_flip_p"] == pytest.approx(flips.pvalue)


def test_dynamic_signed_ranks_and_holm():
    assert over("dynamic")["wilcoxon_p"] == pytest.approx(1 / 64)
    p = [over(structure)["t_p"] for structure in ("dynamic", "fixed", "tree")]
    assert np.round(multipletests(p, method="holm")[1], 3) == pytest.approx([0.005, 0.063, 0.063])


@pytest.mark.parametrize(
    ("structure", "baseline", "difference", "t_p", "flip_p"),
    [
        ("dynamic", "fixed", -2.86, 0.16, None),
        ("dynamic", "tree", -4.71, 0.040, 0.062),
        ("fixed", "tree", -1.86, 0.27, None),
    ],
)
def test_known_answers_between_structures(structure, baseline, difference, t_p, flip_p):
    row = over(structure, baseline=baseline)
    assert round(row["difference_pp"], 2) == difference and row["t_p"] == pytest.approx(t_p, abs=5e-3)
    assert flip_p is None or row["sign_flip_p"] == pytest.approx(flip_p, abs=1e-3)


@pytest.mark.parametrize(
    ("defence", "difference", "t_p", "down", "up"),
    [
        ("restrictive", -2.7, 0.075, 5, 2), ("rubric_informed", -0.8, 0.58, 4, 3), ("permissive", -2.1, 0.085, 5, 1),
        ("gepa", -3.8, 0.023, 6, 1),
    ],
)  # fmt: skip
def test_known_conditional_effects_of_dynamic(defence, difference, t_p, down, up):
    row = over("dynamic", defence)
    assert round(row["difference_pp"], 1) == difference and row["t_p"] == pytest.approx(t_p, abs=5e-3)
    assert (row["n_models_down"], row["n_models_up"]) == (down, up)


def test_gemini_rises_and_single_models_are_as_stated():
    table = published_reductions().set_index(["model", "structure"])
    assert table.loc[("gemini-3.1-pro", "fixed"), "difference_pp"] == pytest.approx(6.0)
    assert table.loc[("gemini-3.1-pro", "tree"), "difference_pp"] == pytest.approx(2.5)
    deepseek = table.loc[("deepseek-v3.2", "dynamic")]
    # 69 → 55: 14 pp and 20.3 % relative, so the paper's 8.8 means pp.
    assert (deepseek["reduction_pp"], round(deepseek["relative_change_pct"], 1)) == (pytest.approx(14.0), -20.3)
    assert round(over("dynamic")["relative_change_pct"], 1) == -15.6


def test_off_the_sycophancy_ceiling_nothing_is_seen():
    row = over("dynamic", "restrictive", "sycophancy")
    assert round(100 * row["rate_baseline"], 1) == 84.6
    assert round(row["difference_pp"], 1) == 0.4 and row["t_p"] == pytest.approx(0.76, abs=5e-3)
    assert (round(100 * over("dynamic", failure_type="beneficial_memory_usage")["rate_arm"], 1)) == 20.7


def test_stated_and_recomputed_differ_in_the_first_decimal():
    stated = (
        load_published_aggregates().query("statistic == 'mean reduction against flat'").set_index("structure")["value"]
    )
    recomputed = {structure: round(over(structure)["reduction_pp"], 2) for structure in stated.index}
    assert dict(stated) == {"dynamic": 8.8, "fixed": 5.7, "tree": 4.2}
    assert recomputed == {"dynamic": 8.79, "fixed": 5.93, "tree": 4.07}
    assert round(over("dynamic")["sd_pp"], 2) == 4.39


def test_rag_is_stated_only():
    rag = load_published_aggregates().query("structure == 'rag'")
    assert rag["value"].item() == 71.3 and "stated only" in rag["note"].item()


def test_what_was_not_published_is_refused_with_a_menu():
    with pytest.raises(InputError, match="defence must be one of .*'gepa'.*got 'strict'"):
        published_reductions("strict")
    with pytest.raises(InputError, match="baseline must be one of"):
        published_reductions(baseline="rag")
    with pytest.raises(InputError, match="No published rates for baseline 'tree'"):
        published_reductions("restrictive", baseline="tree")


def test_the_printed_table():
    text = str(
        show(published_reductions(), ["model", "structure", "difference_pp", "relative_change_pct", "sd_pp", "t_p"])
    )
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "all models dynamic −8.8 pp [−12.8, −4.7] −15.6 % 4.4 pp 0.002" in lines
    assert "gemini-3.1-pro fixed +6.0 pp +9.3 % – –" in lines
    assert math.isnan(published_reductions()["t_p"].iloc[0])
