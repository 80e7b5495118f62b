"""Statistics that went wrong in public code: separated logistic regressions, and signed ranks of zeros and ties."""

from __future__ import annotations

import itertools
import re
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from scipy import stats as scipy_stats

import structmem.intervals as iv
from structmem.estimands import pooled_differences
from structmem.pooled import logistic_effects
from structmem.tables import show


def arm(outcomes, **settings):
    """Results rows of one arm, one generation an entry: failing (5) or passing (1)."""
    base = {
        "failure_type": "cross_domain", "model": "m", "structure": "flat", "structurer": "", "partition_draw": 0,
        "replicate": 0, "judge": "persistbench", "threshold": 3, "generation": 0, "status": "ok", "status_reason": None,
    }  # fmt: skip
    rows = [base | {"entry_id": f"e{i}", "score": 5.0 if bad else 1.0} | settings for i, bad in enumerate(outcomes)]
    return pd.DataFrame(rows)


# E02: eight answers. A fails 0 of 4 and B 4 of 4; the quasi case is A 2 of 4 and B 4 of 4. Logistic regression gave
# coefficients of 48 with standard errors of 75,000 and p = .9997.
@pytest.mark.parametrize(
    ("a", "b", "words", "p"),
    [
        ([0, 0, 0, 0], [1, 1, 1, 1], "complete separation", 2 / 2**4),
        ([0, 0, 1, 1], [1, 1, 1, 1], "quasi-separation", 2 / 2**2),
        ([1, 1, 1, 1], [0, 0, 1, 1], "quasi-separation", 2 / 2**2),
    ],
)
def test_e02_separation_is_said_in_words_and_gives_no_coefficient(a, b, words, p):
    table = logistic_effects(pd.concat([arm(a), arm(b, structure="fixed")]))
    assert list(table["method"]) == ["GEE", "conditional logistic"]
    assert table[["odds_ratio", "odds_low", "odds_high"]].isna().all(axis=None)
    assert set(table["interval"]) == {"not available: separated"}
    assert table["odds_p"].tolist() == pytest.approx([p, p])  # exact McNemar by hand: 2 / 2**discordant
    gee, conditional = table["remark"]
    assert gee.startswith(f"{words}, no finite odds ratio") and "separation, no finite odds ratio" in conditional
    assert f"fixed fails in {sum(b)} of 4" in gee and f"flat fails in {sum(a)} of 4" in gee
    text = str(show(table))
    assert not re.search(r"\b(nan|inf)\b", text) and words in text


def test_e02_separation_in_every_one_of_several_models():
    parts = [arm([0, 0, 1, 1]), arm([1, 1, 1, 1], structure="fixed")]
    parts += [arm([0, 0, 0, 0], model="n"), arm([0, 1, 1, 0], structure="fixed", model="n")]
    gee = logistic_effects(pd.concat(parts)).iloc[0]
    assert "in every model fixed always fails or flat never" in gee["remark"]
    # One model that overlaps is enough for a finite odds ratio.
    parts += [arm([0, 1, 1, 0] * 3, model="o"), arm([1, 0, 1, 0] * 3, structure="fixed", model="o")]
    assert 1 < logistic_effects(pd.concat(parts)).iloc[0]["odds_ratio"] < 100


# E04: all differences 0; ties; and means in which 0.1 + 0.2 meets 0.3.
def test_e04_all_zero_is_p_1_without_a_warning():
    over = iv.over_models([0.0] * 5)
    assert (over.wilcoxon_p, over.sign_flip_p) == (1.0, 1.0)
    parts = [arm([1, 0, 1], structure=s, model=m) for m in ("m", "n", "o") for s in ("flat", "fixed")]
    table = pooled_differences(pd.concat(parts))
    entries, models = table.to_dict("records")
    assert entries["sign_flip_p"] == models["sign_flip_p"] == models["wilcoxon_p"] == 1.0
    assert entries["remark"] == "no discordant pairs" and "all differences are 0" in models["remark"]
    assert entries["interval"] == models["interval"] == "not available: no variation"
    assert np.isnan(entries["low_pp"]) and np.isnan(models["low_pp"])
    assert "nan" not in str(show(table))


def test_e04_ties_stay_exact_and_the_method_and_zero_rule_are_stated():
    values = [1, 1, 2, 3, 4]
    ranks = scipy_stats.rankdata(values)
    sums = [
        abs(sum(s * r for s, r in zip(signs, ranks, strict=True))) for signs in itertools.product((1, -1), repeat=5)
    ]
    assert iv.wilcoxon_exact_p(values) == np.mean([one >= sum(ranks) for one in sums]) == 2 / 2**5
    assert iv.wilcoxon_exact_p([0, *values]) == iv.wilcoxon_exact_p(values)
    parts = [arm([1, 0, bad], structure=s, model=m) for m in "mno" for s, bad in (("flat", 1), ("fixed", 0))]
    stated = pooled_differences(pd.concat(parts))["test"].tolist()
    assert stated == [
        "sign flips of entries, exact",
        "t; sign flips of models, exact; signed ranks, exact, zeros dropped",
    ]


def test_e04_rounding_error_is_no_difference():
    assert iv.wilcoxon_exact_p([0.1 + 0.2 - 0.3, 0.0]) == 1.0
    assert iv.wilcoxon_exact_p([0.1 + 0.2, -0.3, 0.7]) == iv.wilcoxon_exact_p([3, -3, 7])


def _flips(values):
    """The sign-flip p-value in whole-number arithmetic."""
    seen = abs(sum(values))
    patterns = itertools.product((1, -1), repeat=len(values))
    found = [abs(sum(s * v for s, v in zip(signs, values, strict=True))) >= seen for signs in patterns]
    return float(Fraction(sum(found), len(found)))


def test_e04_thirds_keep_their_ties():
    # Differences of rates over 3 runs of 200 entries, in pp: ties that rounding to 9 decimals would break.
    rng = np.random.default_rng(0)
    for _ in range(60):
        steps = rng.integers(-8, 9, size=7)
        assert iv.sign_flip_p(100 * steps / 600) == pytest.approx(_flips(steps.tolist()), abs=1e-12)


def test_e04_thirds_of_runs_keep_their_ties_over_entries():
    rng = np.random.default_rng(6)
    for _ in range(4):
        flat, fixed = rng.random(11) < 0.6, rng.random((3, 11)) < 0.4
        parts = [arm(flat), *(arm(one, structure="fixed", partition_draw=draw) for draw, one in enumerate(fixed))]
        found = pooled_differences(pd.concat(parts)).iloc[0]["sign_flip_p"]
        assert found == pytest.approx(_flips((fixed.sum(axis=0) - 3 * flat.astype(int)).tolist()), abs=1e-12)
