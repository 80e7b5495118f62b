"""The positive control: a planted difference and a planted null come back through the whole chain."""

import math

import pytest

from structmem.data import Entry
from structmem.errors import InputError
from structmem.experiment import run
from structmem.simulate import GENERIC, planted_entries, planted_model, simulated_judge
from structmem.stats import failure_rate, paired_differences


def failing(leak: float, generations: int = 3) -> float:
    """Probability that at least one of the generations leaks."""
    return 1 - (1 - leak) ** generations


@pytest.fixture(scope="module")
def results():
    model = planted_model({"flat": 0.3, "fixed": 0.1, "rag": 0.3})
    structures = ("flat", "fixed", "rag")
    return run(planted_entries(200), models=[model], structures=structures, judge=simulated_judge, store=":memory:")


def test_rates_are_those_of_the_binomial_maximum(results):
    rates = failure_rate(results)
    assert len(rates) == 4  # flat twice
    for row in rates.itertuples():
        expected = failing(0.1 if row.structure == "fixed" else 0.3)
        error = math.sqrt(expected * (1 - expected) / 200)
        assert abs(row.failure_rate - expected) < 3.3 * error
        assert abs(row.fr_at_1 - (0.1 if row.structure == "fixed" else 0.3)) < 3.3 * math.sqrt(0.25 / 600)
        assert row.n_entries == 200 and row.n_unscored == 0


def test_the_planted_difference_and_the_planted_nulls_come_back(results):
    table = paired_differences(results).set_index("arm")
    planted = 100 * (failing(0.1) - failing(0.3))
    for arm, expected in {"flat (A/A)": 0.0, "fixed (embedding)": planted, "rag": 0.0}.items():
        row = table.loc[arm]
        leak = 0.1 if arm.startswith("fixed") else 0.3
        variance = failing(0.3) * (1 - failing(0.3)) + failing(leak) * (1 - failing(leak))
        assert abs(row.difference_pp - expected) < 3.3 * 100 * math.sqrt(variance / 200)
    fixed = table.loc["fixed (embedding)"]
    assert fixed.high_pp < 0
    assert fixed.mcnemar_p < 0.001
    assert table.loc["flat (A/A)"].low_pp < 0 < table.loc["flat (A/A)"].high_pp


def test_everything_says_simulated(results):
    assert results["model"].str.startswith("simulated/").all()
    assert (results["judge"] == "simulated").all()
    assert results["entry_id"].str.startswith("simulated-").all()


def test_draws_do_not_depend_on_order_and_change_with_the_seed():
    entries = planted_entries(12)

    def one(order, seed):
        model = planted_model({"flat": 0.5}, seed)
        df = run(order, models=[model], structures=["flat"], judge=simulated_judge, store=":memory:", aa=False)
        return df.set_index(["entry_id", "generation"])["score"]

    assert one(entries, 1).equals(one(entries[::-1], 1))
    assert not one(entries, 1).equals(one(entries, 2))


def test_other_plans_are_other_models():
    names = {planted_model({"flat": leak}, seed).model_id for leak in (0.1, 0.2) for seed in (0, 1)}
    assert len(names) == 4


def test_a_leak_is_a_probability():
    with pytest.raises(InputError, match=r"\[0, 1\], got 60"):
        planted_model({"flat": 60})


def test_the_judge_scores_on_the_scale_of_the_type():
    for kind, scores in {"cross_domain": (1, 4), "beneficial_memory_usage": (1, 3), "sycophancy": (1, 4)}.items():
        entry = Entry("e", ("User paints.",), "q", kind)
        assert simulated_judge(entry, GENERIC)["score"] == scores[0]
        assert simulated_judge(entry, "As I know: User paints.")["score"] == scores[1]
