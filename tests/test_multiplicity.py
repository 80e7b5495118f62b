"""Adjusted p-values: Holm within families, Benjamini–Hochberg among exploratory rows, and what is counted."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from structmem.analysis_plan import load_plan
from structmem.errors import InputError
from structmem.multiplicity import adjusted

PLAN = load_plan(Path(__file__).parents[1] / "data" / "analysis_plan.yaml")
ADDED = ["holm_p", "bh_p", "family", "n_family", "adjustment"]


def table(*rows, **same):
    """Rows of (arm, baseline, p), or (arm, baseline, p, more)."""
    made = [
        {"failure_type": "cross_domain", "arm": arm, "baseline": baseline, "t_p": p} | same | (more[0] if more else {})
        for arm, baseline, p, *more in rows
    ]
    return pd.DataFrame(made).assign(remark="")


def adjust(frame, p="t_p"):
    return adjusted(frame, p, PLAN)


DEPTH = (("dynamic", "fixed", 0.01), ("tree", "fixed", 0.04), ("tree", "dynamic", 0.03))


def test_holm_within_a_family_by_hand():
    found = adjust(table(*DEPTH))
    # .01 × 3; then .03 × 2 = .06, which .04 × 1 may not undercut
    assert found["holm_p"].tolist() == pytest.approx([0.03, 0.06, 0.06])
    assert found["family"].tolist() == ["depth"] * 3 and found["n_family"].tolist() == [3] * 3
    assert found["bh_p"].isna().all() and found["t_p"].tolist() == [0.01, 0.04, 0.03]
    assert set(found["adjustment"]) == {"Holm over 3 tests of family 'depth'"}
    assert list(found) == ["failure_type", "arm", "baseline", "t_p", *ADDED, "remark"]


def test_benjamini_hochberg_over_the_other_rows_by_hand():
    found = adjust(table(("rag", "flat", 0.01), ("flat (A/A)", "flat", 0.04), ("rag", "tree", 0.03)))
    # .01 × 3/1; .03 × 3/2 = .045, which may not exceed .04 × 3/3
    assert found["bh_p"].tolist() == pytest.approx([0.03, 0.04, 0.04])
    assert found["family"].tolist() == ["exploratory"] * 3 and found["holm_p"].isna().all()
    assert set(found["adjustment"]) == {"Benjamini–Hochberg over 3 tests"}


def test_families_do_not_share_their_tests():
    found = adjust(table(("dynamic", "flat", 0.04), *DEPTH, ("fixed", "flat", 0.02), ("tree", "flat", 0.5)))
    assert found["family"].tolist() == ["primary", "depth", "depth", "depth", "structures", "structures"]
    assert found["holm_p"].tolist() == pytest.approx([0.04, 0.03, 0.06, 0.06, 0.04, 0.5])
    assert found["adjustment"].iloc[0] == "Holm over 1 test of family 'primary'"


def test_what_is_missing_stays_missing_is_not_counted_and_is_said():
    rows = table(("dynamic", "fixed", 0.01), ("tree", "fixed", math.nan), ("rag", "flat", 0.2), ("rag", "tree", None))
    found = adjust(rows)
    assert found["holm_p"].tolist() == pytest.approx([0.01, *[math.nan] * 3], nan_ok=True)
    assert found["bh_p"].tolist() == pytest.approx([math.nan, math.nan, 0.2, math.nan], nan_ok=True)
    assert found["n_family"].tolist() == [1, 1, 1, 1]
    holm = "Holm over 1 test of family 'depth' (1 without a p-value not counted, 1 planned not in this table)"
    bh = "Benjamini–Hochberg over 1 test (1 without a p-value not counted)"
    missing = "no p-value, not counted; "
    assert found["adjustment"].tolist() == [holm, missing + holm, bh, missing + bh]
    none = adjust(table(("dynamic", "flat", math.nan)))
    assert none[["holm_p", "bh_p"]].isna().all(axis=None) and none["n_family"].tolist() == [0]


def test_only_the_planned_estimand_over_all_models_is_in_a_family():
    these, new = {"estimand": "these models, new entries"}, {"estimand": "new models"}
    models = [{"model": name} for name in ("all models", "a", "all but a")]
    rows = [("dynamic", "flat", 0.03, model | estimand) for model in models for estimand in (these, new)]
    found = adjust(table(*rows))
    assert found["family"].tolist() == ["primary"] + ["exploratory"] * 5
    assert found["holm_p"].iloc[0] == 0.03 and found["n_family"].tolist() == [1, *[5] * 5]
    one = adjust(table(("dynamic", "flat", 0.03, {"model": "a"}), ("rag", "flat", 0.1, {"model": "a"})))
    assert one["family"].tolist() == ["primary", "exploratory"]


def test_what_is_planned_against_a_margin_is_in_its_family_only_with_one():
    rows = [("fixed", "flat", 0.04), ("tree", "flat", 0.02)]
    beneficial = table(*rows, failure_type="beneficial_memory_usage")
    assert set(adjust(beneficial)["family"]) == {"exploratory"}
    found = adjust(beneficial.assign(margin_pp=5.0))
    assert set(found["family"]) == {"beneficial"} and found["holm_p"].tolist() == pytest.approx([0.04, 0.04])


def test_rows_that_are_exploratory_by_their_stamp_have_both():
    found = adjust(table(*DEPTH, ("rag", "flat", 0.02)).assign(analysis="exploratory"))
    assert found["holm_p"].tolist() == pytest.approx([0.03, 0.06, 0.06, math.nan], nan_ok=True)
    assert found["bh_p"].tolist() == pytest.approx([0.04, 0.04, 0.04, 0.04])
    assert found["adjustment"].iloc[0] == "Holm over 3 tests of family 'depth'; Benjamini–Hochberg over 4 tests"
    assert found["n_family"].tolist() == [3, 3, 3, 4]
    for kind in ("confirmatory", "descriptive"):
        assert adjust(table(*DEPTH).assign(analysis=kind))["bh_p"].isna().all()


def test_a_table_without_contrasts_is_exploratory():
    found = adjust(pd.DataFrame({"model": ["a", "b"], "sign_flip_p": [0.01, 0.02]}), "sign_flip_p")
    assert found["bh_p"].tolist() == pytest.approx([0.02, 0.02]) and set(found["family"]) == {"exploratory"}


@pytest.mark.parametrize(
    ("frame", "p", "said"),
    [
        (table(*DEPTH), "wilcoxon_p", r"p must be one of \['t_p'\], got 'wilcoxon_p'"),
        (table(*DEPTH), "arm", r"p must be one of \['t_p'\], got 'arm'"),
        (table(("tree", "flat", 1.5)), "t_p", r"t_p must lie in \[0, 1\], got 1.5"),
        (table(("tree", "flat", -0.1)), "t_p", "got -0.1"),
        (table(("tree", "flat", "small")), "t_p", r"t_p must hold numbers in \[0, 1\], got 'small'"),
        (adjust(table(*DEPTH)), "t_p", r"\['holm_p', 'bh_p', 'family', 'n_family'\] already"),
    ],
)
def test_what_cannot_be_adjusted_is_refused(frame, p, said):
    with pytest.raises(InputError, match=said):
        adjust(frame, p)


def test_nothing_is_nothing():
    found = adjust(table(*DEPTH).iloc[:0])
    assert len(found) == 0 and set(ADDED) <= set(found)


some_p = some.one_of(some.none(), some.floats(0, 1))


@settings(max_examples=12, deadline=None)
@given(some.lists(some_p, min_size=1, max_size=10), some.randoms())
def test_both_by_their_definitions(values, rng):
    rows = table(*[("rag", "flat", p) for p in values], *[("tree", "fixed", p) for p in values])
    rng.shuffle(order := list(range(len(rows))))
    found = adjust(rows.iloc[order]).loc[range(len(rows))]
    bh, holm = found["bh_p"].to_numpy()[: len(values)], found["holm_p"].to_numpy()[len(values) :]
    known = [p for p in values if p is not None]
    for place, p in enumerate(values):
        if p is None:
            assert np.isnan(bh[place]) and np.isnan(holm[place])
            continue
        # The level at which a step-up (step-down) procedure first rejects it, by trying every rank.
        up = min(other * len(known) / sum(one <= other for one in known) for other in known if other >= p)
        down = max(other * sum(one >= other for one in known) for other in known if other <= p)
        assert bh[place] == pytest.approx(min(up, 1)) and holm[place] == pytest.approx(min(down, 1))
