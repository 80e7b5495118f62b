"""Variance of a reduction by prompt, draw and generation: known components, hand-worked values, missing cells."""

import json
from math import isnan

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from structmem.errors import InputError
from structmem.tables import show
from structmem.variance import (
    BASELINE,
    DRAW,
    ENTRY,
    GENERATION,
    PROMPT,
    PROMPT_BY_ENTRY,
    reduction_variance,
    variance_components,
    variance_reading,
)

TRUE = {ENTRY: 4.0, PROMPT: 0.5, PROMPT_BY_ENTRY: 1.0, DRAW: 0.7, GENERATION: 2.0}


def simulated(rng, n=12, w=4, d=2, g=2):
    parts = ((n, 1, 1, 1), (1, w, 1, 1), (n, w, 1, 1), (n, w, d, 1), (n, w, d, g))
    return sum(rng.normal(0, np.sqrt(size), shape) for size, shape in zip(TRUE.values(), parts, strict=True))


def test_known_components_are_found_on_average():
    rng = np.random.default_rng(3)
    found = pd.DataFrame([variance_components(simulated(rng)) for _ in range(1500)])
    error = found.std() / np.sqrt(len(found))
    assert ((found.mean() - pd.Series(TRUE)).abs() < 4 * error).all()


def test_one_way_components_are_the_textbook_ones():
    rng = np.random.default_rng(4)
    values = rng.normal(size=(7, 1, 1, 5)) + rng.normal(size=(7, 1, 1, 1))
    found = variance_components(values)
    rows = values.reshape(7, 5)
    f = stats.f_oneway(*rows).statistic  # mean square of entries over mean square within
    within = rows.var(axis=1, ddof=1).mean()
    assert found[GENERATION] == pytest.approx(within)
    assert found[ENTRY] == pytest.approx((f * within - within) / 5)
    assert all(isnan(found[name]) for name in (PROMPT, PROMPT_BY_ENTRY, DRAW))


def test_components_without_a_second_level_are_part_of_the_next():
    rng = np.random.default_rng(6)
    full = simulated(rng, n=400, w=3, d=3, g=2)
    one = variance_components(full[..., :1])
    assert isnan(one[GENERATION]) and one[DRAW] == pytest.approx(TRUE[DRAW] + TRUE[GENERATION], rel=0.15)
    one = variance_components(full[:, :, :1, :1])
    assert isnan(one[DRAW]) and one[PROMPT_BY_ENTRY] == pytest.approx(3.7, rel=0.15)


def table(values, flat=None, judge="judge", **settings):
    """Results from an array entry × wording × draw × generation of scores, and the baseline's entry × generation."""
    n, w, d, g = values.shape
    flat = np.full((n, 1), 3.0) if flat is None else flat
    same = {"failure_type": "cross_domain", "model": "m", "judge": judge, "threshold": 3.0, "replicate": 0}
    same |= {"high_is_bad": True, "scale_low": 1, "scale_high": 5} if judge != "echo" else {"echo_threshold": 0.5}
    same |= settings

    def row(entry, generation, value, **arm):
        scored = pd.notna(value)
        found = same | {"entry_id": f"e{entry}", "generation": generation, "status": "ok" if scored else "no_verdict"}
        if judge == "echo":
            return found | arm | {"echo_overlap": value, "echoed": bool(value >= 0.5) if scored else None}
        return found | arm | {"score": value}

    none = {"structurer": "", "structurer_options": "", "partition_draw": 0}
    rows = [row(e, k, v, structure="flat", **none) for (e, k), v in np.ndenumerate(flat)]
    for (e, wording, draw, k), value in np.ndenumerate(values):
        options = json.dumps({"temperature": 0.7, "wording": wording})
        arm = {"structure": "fixed", "structurer": "sorter", "structurer_options": options, "partition_draw": draw}
        rows.append(row(e, k, value, **arm))
    return pd.DataFrame(rows)


def scores(seed=0, shape=(8, 3, 2, 2)):
    return np.random.default_rng(seed).integers(1, 6, size=shape).astype(float)


def test_results_become_the_components_of_the_reduction():
    values = scores()
    flat = scores(1, (8, 3))
    found = reduction_variance(table(values, flat)).set_index(["measure", "component"])
    reductions = flat.mean(axis=1).reshape(-1, 1, 1, 1) - values
    for component, variance in variance_components(reductions).items():
        assert found.loc[("mean score", component), "variance"] == pytest.approx(variance)
    failing = 100 * ((flat >= 3).mean(axis=1).reshape(-1, 1, 1, 1) - (values >= 3))
    for component, variance in variance_components(failing).items():
        assert found.loc[("failure rate", component), "variance"] == pytest.approx(variance)
    base = found.loc[("mean score", BASELINE)]
    assert base["variance"] == pytest.approx(flat.var(axis=1, ddof=1).mean())
    assert base["sd_in_mean"] == pytest.approx(np.sqrt(base["variance"] / (8 * 3)))
    assert found.loc[("mean score", PROMPT), "levels"] == 3 and found.loc[("mean score", DRAW), "df"] == 8 * 3
    assert set(found["n_entries"]) == {8}


def test_intervals_are_those_of_other_code():
    values = scores(2)
    found = reduction_variance(table(values)).set_index(["measure", "component"]).loc["mean score"]
    leave = [variance_components(3 - np.delete(values, i, axis=0))[DRAW] for i in range(8)]
    full = variance_components(3 - values)[DRAW]
    pseudo = 8 * full - 7 * np.array(leave)
    assert found.loc[DRAW, "variance"] == pytest.approx(full)
    half = (found.loc[DRAW, "high"] - found.loc[DRAW, "low"]) / 2
    assert half >= stats.t.ppf(0.975, 7) * stats.sem(pseudo) * (1 - 1e-9)  # fewer degrees of freedom widen it
    assert half <= stats.t.ppf(0.975, 2) * stats.sem(pseudo)
    # Williams and Tukey's from the two-way table of cell means, entries × wordings.
    cells = pd.DataFrame((3 - values).mean(axis=(2, 3)))
    between = 8 * cells.mean().var(ddof=1)
    residual = cells.sub(cells.mean(axis=1), axis=0).sub(cells.mean() - cells.to_numpy().mean())
    within = (residual**2).to_numpy().sum() / (7 * 2)
    low = 2 * (between - stats.f.ppf(0.975, 2, 14) * within) / (8 * stats.chi2.ppf(0.975, 2))
    high = 2 * (between - stats.f.ppf(0.025, 2, 14) * within) / (8 * stats.chi2.ppf(0.025, 2))
    assert tuple(found.loc[PROMPT, ["low", "high"]]) == pytest.approx((low, high))
    assert found.loc[PROMPT, "interval"].startswith("Williams-Tukey")


def test_entries_that_are_not_complete_are_left_out_and_uneven_designs_cut():
    values = scores(5)
    values[2, 1, 0, 1] = np.nan
    found = reduction_variance(table(values))
    whole = reduction_variance(table(np.delete(values, 2, axis=0)))
    assert set(found["n_entries"]) == {7} and set(found["n_left_out"]) == {1}
    assert found["variance"].tolist() == pytest.approx(whole["variance"].tolist(), nan_ok=True)
    rows = table(scores(5))
    last = rows["structurer_options"].str.contains('"wording": 2') & rows["partition_draw"].eq(1)
    cut = reduction_variance(rows[~last])
    assert set(cut.loc[cut["component"] == DRAW, "levels"]) == {1}
    assert cut.loc[cut["component"] == DRAW, "reading"].iloc[0].endswith("it is part of 'prompt × entry'")


def test_echo_has_overlaps_and_a_constant_outcome_says_so(capsys):
    values = np.random.default_rng(8).uniform(0, 0.3, (6, 3, 2, 2))
    found = reduction_variance(table(values, np.full((6, 1), 0.2), judge="echo"))
    assert list(dict.fromkeys(found["measure"])) == ["echo rate", "mean overlap"]
    rate = found[found["measure"] == "echo rate"]
    assert rate["variance"].dropna().eq(0).all() and rate["low"].isna().all()
    variance_reading(found)
    said = capsys.readouterr().out
    assert "no variation: all values are the same" in said and "3 wordings are too few" in said and "nan" not in said
    assert "nan" not in str(show(found))


def test_estimates_below_zero_stay_and_are_said_to_be_compatible_with_zero():
    values = np.zeros((4, 2, 2, 2)) + np.array([1.0, 5.0])  # two generations apart, everything else alike
    row = reduction_variance(table(values)).set_index(["measure", "component"]).loc[("mean score", DRAW)]
    assert row["variance"] == pytest.approx(-8 / 2) and isnan(row["sd"])
    assert row["reading"].startswith("compatible with 0 (the estimate is below 0")


def test_models_and_other_settings_stay_apart_and_arms_without_levels_have_no_rows(capsys):
    one, two = table(scores(1)), table(scores(2), model="other")
    both = reduction_variance(pd.concat([one, two], ignore_index=True))
    assert both.groupby("model").size().to_dict() == {"m": 12, "other": 12}
    alone = reduction_variance(two)["variance"].tolist()
    assert both.loc[both["model"] == "other", "variance"].tolist() == pytest.approx(alone, nan_ok=True)
    assert not len(reduction_variance(table(scores(1, (4, 1, 1, 3)))))
    variance_reading(reduction_variance(table(scores(1, (4, 1, 1, 3)))))
    assert "no variance to split" in capsys.readouterr().out
    assert not len(reduction_variance(one.iloc[:0]))
    with pytest.raises(InputError, match="baseline must be one of"):
        reduction_variance(one, baseline="tree")
    with pytest.raises(InputError, match="share their key"):
        reduction_variance(pd.concat([one, one], ignore_index=True))


def test_one_entry_has_no_variance_of_entries(capsys):
    found = reduction_variance(table(scores(3, (1, 2, 2, 2)))).set_index(["measure", "component"]).loc["mean score"]
    assert found.loc[ENTRY, "reading"] == "not available: one entry"
    assert found.loc[GENERATION, "low"] != found.loc[GENERATION, "low"]
    variance_reading(reduction_variance(table(scores(3, (1, 2, 2, 2)))))
    assert "nan" not in capsys.readouterr().out
