"""One structure under several taxonomies, structurers and options: differences recomputed entry by entry."""

import json
from math import isnan

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from structmem.errors import InputError
from structmem.optiontexts import option_words, options_of
from structmem.setting_effects import effects_by_setting, setting_reading
from structmem.stats import paired_differences
from structmem.tables import show

N = 12


def rows(values, structure="fixed", generations=1, **arm):
    """Results of one arm: a score per entry, the same in every generation; NaN: not scored."""
    same = {"failure_type": "cross_domain", "model": "m", "judge": "judge", "threshold": 3.0, "replicate": 0}
    same |= {"high_is_bad": True, "scale_low": 1, "scale_high": 5, "renderer": "markdown", "partition_draw": 0}
    same |= {"structure": structure, "structurer": "", "structurer_options": "", "taxonomy": ""}
    return [
        same | arm | {"entry_id": f"e{i:02d}", "generation": g, "score": v, "status": "ok" if v == v else "no_verdict"}
        for i, v in enumerate(values)
        for g in range(generations)
    ]


def scores(seed):
    return np.random.default_rng(seed).integers(1, 6, N).astype(float)


FLAT, LIFE, COARSE = scores(1), scores(2), scores(3)


def results(**more):
    sorted_ = {"structurer": "embedding"}
    found = rows(FLAT, "flat", **more) + rows(LIFE, taxonomy="life11", **sorted_, **more)
    return pd.DataFrame(found + rows(COARSE, taxonomy="coarse5", **sorted_, **more))


def test_each_level_against_the_baseline_is_the_paired_difference():
    table = effects_by_setting(results())
    held = table[table["against"] == "flat"].set_index("level")
    plain = paired_differences(results()).set_index("taxonomy")
    for column in ("difference_pp", "low_pp", "high_pp", "mean_score_difference"):
        assert held[column].to_dict() == pytest.approx(plain[column].to_dict())
    assert list(table["level"]) == ["life11", "coarse5", "coarse5"] and set(table["interval"][:2]) == {
        "Tango, paired entries"
    }
    gaps = LIFE - FLAT
    low, high = stats.t.interval(0.95, N - 1, gaps.mean(), stats.sem(gaps))
    assert tuple(held.loc["life11", ["mean_score_low", "mean_score_high"]]) == pytest.approx((low, high))


def test_levels_are_compared_entry_by_entry_without_the_baseline():
    row = effects_by_setting(results()).query("against == 'life11'").iloc[0]
    for column, gaps in (
        ("difference_pp", 100 * ((COARSE >= 3) * 1.0 - (LIFE >= 3))), ("mean_score_difference", COARSE - LIFE),
    ):  # fmt: skip
        assert row[column] == pytest.approx(gaps.mean())
    low, high = stats.ttest_rel(COARSE, LIFE).confidence_interval(0.95)
    assert (row["mean_score_low"], row["mean_score_high"]) == pytest.approx((low, high))
    assert (row["rate_arm"], row["rate_against"]) == ((COARSE >= 3).mean(), (LIFE >= 3).mean())
    turned = effects_by_setting(results(), reference="coarse5").query("against == 'coarse5'").iloc[0]
    assert turned["difference_pp"] == pytest.approx(-row["difference_pp"])


def test_only_entries_that_are_complete_everywhere_are_compared():
    lost = COARSE.copy()
    lost[[0, 4]] = np.nan
    table = pd.DataFrame(
        rows(FLAT, "flat")
        + rows(LIFE, taxonomy="life11", structurer="embedding")
        + rows(lost, taxonomy="coarse5", structurer="embedding")
    )
    row = effects_by_setting(table).query("against == 'life11'").iloc[0]
    kept = ~np.isnan(lost)
    assert row["n_entries"] == N - 2
    assert row["mean_score_difference"] == pytest.approx((lost - LIFE)[kept].mean())


def options(wording):
    return json.dumps({"retries": 2, "temperature": 0.7, "wording": wording})


def by_model():
    found = rows(FLAT, "flat")
    found += rows(LIFE, taxonomy="life11", structurer="embedding", structurer_options="{}")
    for wording in (0, 1):
        for draw in (0, 1):
            arm = {"structurer": "big/model", "structurer_options": options(wording), "partition_draw": draw}
            found += rows(scores(10 + 2 * wording + draw), taxonomy="life11", **arm)
    return pd.DataFrame(found)


def test_options_are_named_by_what_differs_and_draws_are_runs():
    table = effects_by_setting(by_model(), "structurer_options")
    mine = table[table["level"].str.startswith("wording")]
    assert list(mine["level"]) == ["wording 0", "wording 1", "wording 1"]
    assert list(mine["against"]) == ["flat", "flat", "wording 0"] and set(mine["n_runs"]) == {2}
    mean = (scores(10) + scores(11)) / 2 - FLAT
    assert mine["mean_score_difference"].iloc[0] == pytest.approx(mean.mean())
    turned = effects_by_setting(by_model(), "structurer_options", "wording 1")
    assert "wording 1" in set(turned["against"])


def test_structurers_are_compared_over_all_their_options():
    table = effects_by_setting(by_model(), "structurer")
    assert list(table["level"]) == ["embedding", "big/model", "big/model"]
    over = np.mean([scores(10 + k) for k in range(4)], axis=0)
    assert table["mean_score_difference"].iloc[1] == pytest.approx((over - FLAT).mean())
    assert table["mean_score_difference"].iloc[2] == pytest.approx((over - LIFE).mean())
    assert table["n_runs"].iloc[1] == 4


def test_models_weigh_the_same_and_have_rows_of_their_own():
    two = results().assign(model="n", score=lambda df: df["score"] % 5 + 1)
    table = effects_by_setting(pd.concat([results(), two], ignore_index=True))
    assert table.groupby("model").size().to_dict() == {"all models": 3, "m": 3, "n": 3}
    for _, group in table.groupby(["level", "against"]):
        each = group.set_index("model")["mean_score_difference"]
        assert each["all models"] == pytest.approx((each["m"] + each["n"]) / 2)
    assert list(table["model"])[-3:] == ["all models"] * 3


def test_echo_is_read_as_the_pipeline_and_nothing_found_is_said_plainly(capsys):
    table = results().rename(columns={"score": "echo_overlap"})
    table = table.assign(judge="echo", echo_overlap=0.1, echoed=False, echo_threshold=0.5)
    found = effects_by_setting(table)
    setting_reading(found)
    said = capsys.readouterr().out
    assert "show the pipeline, not an effect" in said and "no interval: nothing varies" in said
    assert "0 of 1 comparisons between levels" in said and "does not show that the levels are alike" in said
    assert "nan" not in said and "nan" not in str(show(found))


def test_what_cannot_be_compared_is_refused_or_said(capsys):
    with pytest.raises(InputError, match="setting must be one of"):
        effects_by_setting(results(), "renderer")
    with pytest.raises(InputError, match="reference must be one of .*'life11'"):
        effects_by_setting(results(), reference="mem0")
    with pytest.raises(InputError, match="baseline must be one of"):
        effects_by_setting(results(), baseline="tree")
    with pytest.raises(InputError, match="taxonomy"):
        effects_by_setting(results().drop(columns="taxonomy"))
    with pytest.raises(InputError, match="share their key"):
        effects_by_setting(pd.concat([results(), results()], ignore_index=True))
    setting_reading(effects_by_setting(pd.DataFrame(rows(FLAT, "flat"))))
    assert "nothing to compare" in capsys.readouterr().out
    assert not len(effects_by_setting(results().iloc[:0]))
    one = effects_by_setting(results().query("entry_id == 'e00'"))
    assert isnan(one["mean_score_low"].iloc[0]) and set(one["n_entries"]) == {1}


def test_options_in_words():
    texts = [options(0), options(1), '{"top_k": null}', "(none)"]
    assert list(option_words(texts).values()) == ["wording 0", "wording 1", "top k none", "(none)"]
    assert option_words(['{"a_b": 1}']) == {'{"a_b": 1}': "a b 1"}
    swapped = ['{"a": 1, "b": 2}', '{"b": 2, "a": 1}', '{"a": 3}']  # the same words would be two arms' name
    assert option_words(swapped)[swapped[0]] == "a 1, b 2"
    assert options_of("{broken") == options_of(None) == options_of("[1]") == {}
    table = pd.DataFrame({"arm": ["fixed"] * 2, "structurer_options": texts[:2], "n": [1, 2]})
    assert "wording 1" in str(show(table)) and "retries" not in str(show(table))
