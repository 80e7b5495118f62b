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
from structmem.published import (
    load_published,
    load_published_aggregates,
    load_published_discordance,
    load_published_persistbench,
    published_drift,
    published_recomputed,
    published_reductions,
)
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


# What each stated aggregate is by hand, from the file: mean or deviation of differences, or mean of rates.
BY_HAND = {
    ("dynamic", "mean reduction against flat"): lambda: np.mean(rates("flat") - rates("dynamic")),
    ("dynamic", "standard deviation of the reduction"): lambda: np.std(rates("flat") - rates("dynamic"), ddof=1),
    ("fixed", "mean reduction against flat"): lambda: np.mean(rates("flat") - rates("fixed")),
    ("tree", "mean reduction against flat"): lambda: np.mean(rates("flat") - rates("tree")),
    ("flat", "mean failure rate", "beneficial_memory_usage"): lambda: 163 / 7,
    ("dynamic", "mean failure rate", "beneficial_memory_usage"): lambda: 145 / 7,
    ("flat", "mean failure rate", "sycophancy"): lambda: 675.5 / 7,
}


@pytest.mark.parametrize("what", BY_HAND, ids=lambda what: " ".join(what[:2]))
def test_every_stated_mean_beside_the_recomputed_one(what):
    table = published_recomputed().query("model == 'all models'")
    table = table[(table["structure"] == what[0]) & (table["statistic"] == what[1])]
    row = table[table["failure_type"] == what[2]].iloc[0] if len(what) == 3 else table.iloc[0]
    assert row["recomputed"] == pytest.approx(BY_HAND[what]())
    assert row["recomputed_minus_stated_pp"] == pytest.approx(row["recomputed"] - row["stated"])


def test_each_stated_number_has_its_row_and_its_note():
    table, stated = published_recomputed(), load_published_aggregates()
    assert table["stated"].tolist() == stated["value"].tolist() and table["unit"].tolist() == stated["unit"].tolist()
    dynamic = table.query("structure == 'dynamic' and failure_type == 'cross_domain'")
    notes = dynamic.set_index(dynamic["model"] + ": " + dynamic["statistic"])["note"]
    reduction = notes["all models: mean reduction against flat"]
    assert reduction == "relative to the mean flat rate of 56.2 % it is 15.6 %: pp are meant"
    assert notes["deepseek-v3.2: failure rate"] == "69 → 55 is 14.0 pp less, or 20.3 % relative"
    differing = table[table["note"].str.startswith("differs in the first decimal")]
    found = set(zip(differing["structure"], differing["statistic"].str.split().str[0], strict=True))
    assert found == {("dynamic", "standard"), ("fixed", "mean"), ("tree", "mean")}
    rag = table.query("structure == 'rag'").iloc[0]
    assert rag["stated"] == 71.3 and math.isnan(rag["recomputed"]) and "cannot be recomputed" in rag["note"]
    assert table["recomputed"].isna().sum() == 1 and (table["analysis"] == "descriptive").all()


def test_the_reductions_are_no_relative_changes():
    # Read as per cent, 8.8 would lie far from every way of averaging relative changes.
    flat, dynamic = rates("flat"), rates("dynamic")
    relative = [100 * np.mean((flat - dynamic) / flat), 100 * (1 - dynamic.mean() / flat.mean())]
    assert min(relative) > 15 and abs(np.mean(flat - dynamic) - 8.8) < 0.05


@pytest.mark.parametrize(
    ("arm", "shares", "difference"),
    [
        ("dynamic", (34.2, 9.5, 18.1, 38.1), -8.6), ("fixed", (32.9, 10.9, 16.7, 39.5), -5.8),
        ("tree", (33.0, 10.7, 14.7, 41.6), -4.0),
    ],
)  # fmt: skip
def test_discordance_agrees_with_the_grid(arm, shares, difference):
    row = load_published_discordance().set_index("arm").loc[arm]
    names = ["both_pass_share", "only_baseline_passes_share", "only_arm_passes_share", "both_fail_share"]
    assert [100 * row[name] for name in names] == pytest.approx(shares)
    assert row[names].sum() == pytest.approx(1, abs=0.0015) and row["source"] == "figure-script-outcomes"
    assert row["difference_pp"] == pytest.approx(difference)
    # Both fail and only the other passes make up a rate; the grid has the same rates and differences to 0.3 pp.
    assert 100 * (row["both_fail_share"] + row["only_arm_passes_share"]) == pytest.approx(rates("flat").mean(), abs=0.3)
    assert 100 * (row["both_fail_share"] + row["only_baseline_passes_share"]) == pytest.approx(
        rates(arm).mean(), abs=0.3
    )
    assert difference == pytest.approx((rates(arm) - rates("flat")).mean(), abs=0.3)


def test_the_benchmarks_own_rates_and_how_far_runs_lie_apart():
    own = load_published_persistbench()
    assert own["failure_rate"].between(0.1, 1).all() and own.duplicated(["model", "failure_type", "run"]).sum() == 0
    with_interval = own.dropna(subset=["low"])
    assert len(with_interval) == 6 and set(with_interval["run"]) == {"PersistBench"}
    assert with_interval["failure_rate"].between(with_interval["low"], with_interval["high"]).all()
    drift = published_drift().set_index(["failure_type", "model"])
    llama, gpt = (drift.loc[("cross_domain", model)] for model in ("llama-3.3-70b", "gpt-oss-120b"))
    assert llama[["rate_persistbench", "rate_rerun", "rate_paper"]].tolist() == [0.175, 0.25, 0.13]
    assert (llama["range_pp"], gpt["range_pp"]) == pytest.approx((12.0, 8.5))
    assert len(drift) == 6


def test_every_source_is_explained():
    keys = {key for load in (load_published, load_published_aggregates, load_published_discordance,
                             load_published_persistbench) for key in load()["source"]}  # fmt: skip
    text = package_file("published", "SOURCES.md").read_text(encoding="utf-8")
    assert {key for key in keys if f"| `{key}` |" not in text} == set()


def test_a_table_can_be_changed_without_changing_the_next():
    first = load_published()
    first["failure_rate"] = 0
    assert load_published()["failure_rate"].mean() > 0.4 and published_reductions()["rate_arm"].max() > 0.4


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
