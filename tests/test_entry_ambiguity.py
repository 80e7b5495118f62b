"""Reductions beside ambiguity: by hand, against a regression made otherwise, with what is left out; words, figures."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from structmem import figures
from structmem.ambiguity import memory_ambiguity
from structmem.ambiguity_words import ambiguity_reading
from structmem.data import Entry
from structmem.entry_ambiguity import (
    ambiguity_effect,
    ambiguity_split,
    entry_reductions,
    gold_ambiguity,
)
from structmem.errors import InputError
from structmem.labelling import labelling_agreement
from structmem.sorting_accuracy import confusion, domain_errors, structurer_accuracy
from structmem.tables import show

HEALTH = "Health and Medical Information"
N = 24


def results(n=N, models=("m1", "m2"), echo=False, effect=-1.0, seed=0) -> pd.DataFrame:
    """One row per generation; the structure's score falls less where the entry's number is high."""
    rng = np.random.default_rng(seed)
    rows = []
    for model in models:
        for k in range(n):
            for structure in ("flat", "fixed"):
                for generation in range(2):
                    score = float(
                        np.clip(round(3 + rng.normal() + (structure == "fixed") * effect * (k % 3 == 0)), 1, 5)
                    )
                    row = {
                        "entry_id": f"e{k:02d}",
                        "failure_type": "cross_domain",
                        "model": model,
                        "generation": generation,
                    }
                    row |= {"structure": structure, "replicate": 0, "status": "ok", "threshold": 3.0, "score": score}
                    row |= {
                        "judge": "j",
                        "context_tokens": 40 + 7 * (k % 5) + k,
                        "structurer": "m",
                        "partition_draw": 0,
                    }
                    if echo:
                        row |= {"judge": "echo", "score": np.nan, "echo_overlap": score / 10, "echoed": score > 4}
                    rows.append(row)
    return pd.DataFrame(rows)


def gold(n=N) -> pd.DataFrame:
    rng = np.random.default_rng(5)
    table = pd.DataFrame({"entry_id": [f"e{k:02d}" for k in range(n)], "memory_domain": HEALTH, "n_gold": 1})
    return table.assign(
        n_memories=rng.integers(4, 14, n), n_domains=rng.integers(2, 7, n), entropy_bits=rng.choice([0.0, 0.5, 1.0], n),
        disagreement=rng.random(n), several_acceptable=rng.choice([0.0, 1.0], n), reason="",
    )  # fmt: skip


ENTRY = Entry("e", ["a", "b", "c", "d"], "Q?", "cross_domain", HEALTH)


def memories(rows) -> pd.DataFrame:
    raters = [f"r{k}" for k in range(len(rows[0]))]
    table = [("e", at, rater, d) for at, row in enumerate(rows, 1) for rater, d in zip(raters, row, strict=True)]
    return pd.DataFrame(table, columns=["entry_id", "position", "rater", "domain"])


def labels(domains, acceptable=None) -> pd.DataFrame:
    sets = acceptable or [(d,) for d in domains]
    table = [("e", at, d, s, False, 1.0, "") for at, (d, s) in enumerate(zip(domains, sets, strict=True), 1)]
    return pd.DataFrame(
        table, columns=["entry_id", "position", "domain", "acceptable", "spans_domains", "weight", "stratum"]
    )


def test_gold_memories_are_those_whose_label_or_else_modal_domain_is_accepted():
    rows = [["health", "health"], ["health", "social"], ["legal", "legal"], ["social", "health"]]
    by_modal = gold_ambiguity(memory_ambiguity(memories(rows)), [ENTRY]).iloc[0]
    assert (by_modal["n_gold"], by_modal["gold_by"], by_modal["n_domains"]) == (3, "modal domain", 2)
    assert by_modal["entropy_bits"] == pytest.approx(2 / 3) and math.isnan(by_modal["several_acceptable"])
    known = labels(
        ["social", "health", "health", "legal"], [("social",), ("health", "social"), ("health",), ("legal",)]
    )
    by_label = gold_ambiguity(memory_ambiguity(memories(rows), known), [ENTRY]).iloc[0]
    assert (by_label["n_gold"], by_label["gold_by"]) == (2, "label")
    assert by_label["entropy_bits"] == 0.5 and by_label["disagreement"] == 0.5 and by_label["several_acceptable"] == 0.5


def test_entries_without_gold_memories_say_why():
    table = memory_ambiguity(memories([["legal", "legal"]] * 4))
    others = [
        Entry("f", ["a"], "Q?", "cross_domain", HEALTH), Entry("g", ["a"], "Q?", "sycophancy"),
        Entry("h", ["a"], "Q?", "cross_domain", "Weather"),
    ]  # fmt: skip
    assert gold_ambiguity(table, [ENTRY, *others])["reason"].tolist() == [
        "no memory in an accepted domain", "not sorted by any rater", "no memory_domain",
        "the taxonomy accepts no domain for the memory_domain 'Weather'",
    ]  # fmt: skip


def test_entries_of_fewer_raters_have_no_entropy():
    some = pd.concat([memories([["health", "health"]] * 4), memories([["health"]] * 4).assign(entry_id="f")])
    found = gold_ambiguity(memory_ambiguity(some), [ENTRY, Entry("f", ["a"] * 4, "Q?", "cross_domain", HEALTH)])
    assert found["entropy_bits"].tolist()[0] == 0 and math.isnan(found["entropy_bits"][1])
    assert found["n_raters"].tolist() == [2, 1]


def reduction(table: pd.DataFrame, value) -> pd.Series:
    """Mean over models of flat − fixed, by pandas alone."""
    by = table.assign(value=value(table)).groupby(["model", "entry_id", "structure"])["value"]
    return by, lambda folded: (folded["flat"] - folded["fixed"]).groupby("entry_id").mean()


def test_an_entrys_reductions_by_hand():
    table = results()
    found = entry_reductions(table, gold()).set_index("entry_id")
    by, fold = reduction(table, lambda t: 1.0 * (t["score"] >= 3))
    assert found["reduction_pp"].to_numpy() == pytest.approx(100 * fold(by.max().unstack()).to_numpy())
    assert found["at_1_reduction_pp"].to_numpy() == pytest.approx(100 * fold(by.mean().unstack()).to_numpy())
    by, fold = reduction(table, lambda t: t["score"])
    assert found["mean_score_reduction"].to_numpy() == pytest.approx(fold(by.mean().unstack()).to_numpy())
    assert (found["n_pairs"] == 2).all() and found["outcome"].eq("failure").all()
    assert (found["analysis"] == "exploratory").all()


@pytest.mark.parametrize("echo", [False, True])
def test_coefficients_and_errors_by_linear_algebra(echo):
    table, known = results(echo=echo), gold()
    rows = entry_reductions(table, known)
    column = "mean_score_reduction"
    design = np.column_stack(
        [np.ones(N), rows["entropy_bits"], rows["n_memories"], rows["n_domains"], rows["context_tokens"] / 100]
    )
    inverse = np.linalg.inv(design.T @ design)
    beta = inverse @ design.T @ rows[column].to_numpy()
    residual = (rows[column].to_numpy() - design @ beta) / (1 - np.einsum("ij,jk,ik->i", design, inverse, design))
    errors = np.sqrt(np.diag(inverse @ (design.T * residual**2) @ design @ inverse))
    found = ambiguity_effect(table, known)
    mine = found[found["of"] == ("mean overlap" if echo else "mean score")]
    assert mine["term"].tolist() == ["entropy_bits", "n_memories", "n_domains", "context_tokens"]
    assert mine["effect"].to_numpy() == pytest.approx(beta[1:])
    half = stats.t.ppf(0.975, N - 5) * errors[1:]
    assert (mine["effect_high"] - mine["effect"]).to_numpy() == pytest.approx(half)
    assert mine["detectable"].to_numpy() == pytest.approx((stats.t.ppf([0.975, 0.8], N - 5).sum()) * errors[1:])
    assert mine["p"].iloc[0] == pytest.approx(2 * stats.t.sf(abs(beta[1] / errors[1]), N - 5))
    assert (found["n_entries"] == N).all() and (found["n_models"] == 2).all() and (found["n_left_out"] == 0).all()
    unit = "overlap" if echo else "score"
    assert mine["per"].tolist() == [f"{unit} per {of}" for of in ("bit", "memory", "domain", "100 tokens")]


def test_an_entry_missing_from_one_model_does_not_stand_for_that_model():
    # The second model reduces everything by 2 more; half of the entries are missing from it.
    table = results(models=("m1",))
    other = table.assign(model="m2", score=np.where(table["structure"] == "flat", 5.0, 1.0))
    both = pd.concat([table, other[other["entry_id"] < f"e{N // 2:02d}"]])
    known = gold().assign(entropy_bits=[1.0 * (k < N // 2) for k in range(N)])
    rows = entry_reductions(both, known)
    assert rows["n_pairs"].tolist() == [2] * (N // 2) + [1] * (N // 2)
    alone = entry_reductions(table, known)
    centred = rows["mean_score_reduction_centred"]
    assert centred.iloc[N // 2 :].tolist() == pytest.approx(
        alone["mean_score_reduction_centred"].iloc[N // 2 :].tolist()
    )
    assert centred.iloc[: N // 2].tolist() == pytest.approx(
        (alone["mean_score_reduction_centred"].iloc[: N // 2] / 2).tolist()
    )


def test_the_split_is_welchs_test():
    table, known = results(), gold()
    rows = entry_reductions(table, known)
    above = rows["entropy_bits"] > rows["entropy_bits"].median()
    found = ambiguity_split(table, known).set_index("of").loc["FR@K"]
    test = stats.ttest_ind(rows.loc[above, "reduction_pp"], rows.loc[~above, "reduction_pp"], equal_var=False)
    assert found["p"] == pytest.approx(test.pvalue) and (found["n_ambiguous"], found["n_rest"]) == (
        above.sum(),
        (~above).sum(),
    )
    ends = test.confidence_interval(0.95)
    assert (found["effect_low"], found["effect_high"]) == pytest.approx((ends.low, ends.high))
    assert found["effect"] == pytest.approx(found["mean_ambiguous"] - found["mean_rest"])


def test_everything_that_is_left_out_is_counted_by_reason():
    table, known = results(), gold()
    table.loc[(table["entry_id"] == "e00") & (table["structure"] == "fixed"), ["status", "score"]] = [
        "no_verdict",
        np.nan,
    ]
    known.loc[1, ["reason", "entropy_bits"]] = ["no memory in an accepted domain", np.nan]
    known.loc[2, "entropy_bits"] = np.nan
    known = known.drop(index=3)
    found = ambiguity_effect(table, known)
    assert (found["n_entries"] == N - 4).all() and (found["n_left_out"] == 4).all()
    for why in ("fewer raters than other entries 1", "no memory in an accepted domain 1", "not complete in both arms 1",
                "not in the table of ambiguity 1"):  # fmt: skip
        assert why in found["reasons"].iloc[0]
    assert ambiguity_split(table, known)["n_left_out"].eq(4).all()


@pytest.mark.parametrize(
    ("change", "n", "why"),
    [
        ({"entropy_bits": 0.0}, N, "entropy_bits is the same in all entries (n = 24)"),
        ({}, 5, "5 entries are too few"),
        ({"entropy_bits": [1.0] + [0.0] * (N - 1)}, N, "one entry alone decides a coefficient"),
        ({"n_domains": range(N), "n_memories": range(0, 2 * N, 2)}, N, "depend on each other"),
        ({"reason": "no memory_domain"}, N, "no entries"),
    ],
)
def test_without_enough_to_go_on_there_is_a_reason_and_no_number(change, n, why):
    found = ambiguity_effect(results(n, ("m1",)), gold(n).assign(**change))
    assert found["effect"].isna().all() and found["reason"].str.contains(why, regex=False).all()
    str(show(found))


def test_constant_reductions_and_covariates():
    same = results(echo=True).assign(echoed=False)
    found = ambiguity_effect(same, gold()).set_index(["of", "term"])
    assert found.loc[("echo at K", "entropy_bits"), "reason"] == "the reduction is the same in all entries"
    dropped = ambiguity_effect(same, gold().assign(n_domains=3)).set_index(["of", "term"])
    row = dropped.loc[("mean overlap", "n_domains")]
    assert math.isnan(row["effect"]) and row["reason"] == "n_domains is the same in all entries (n = 24)"
    assert dropped.loc[("mean overlap", "entropy_bits"), "interval"] == "HC3 over entries, t"
    old = ambiguity_effect(results().drop(columns="context_tokens"), gold())
    assert "context_tokens" not in set(old["term"]) and old["effect"].notna().all()


def test_nothing_to_compare_and_unknown_words():
    flat = results().query("structure == 'flat'")
    for made in (ambiguity_effect, ambiguity_split, entry_reductions):
        assert len(made(flat, gold())) == 0 and "arm" in made(flat, gold())
        assert len(made(flat.iloc[:0], gold())) == 0
        with pytest.raises(InputError, match="share their key"):
            made(pd.concat([results(), results()]), gold())
    with pytest.raises(InputError, match="measure must be one of"):
        ambiguity_effect(results(), gold(), "margin")
    with pytest.raises(InputError, match="gold must be a table"):
        ambiguity_effect(results(), gold().drop(columns="reason"))
    with pytest.raises(InputError, match="twice"):
        ambiguity_effect(results(), pd.concat([gold(), gold()]))


def made(seed=3):
    """Assignments and labels of ten entries, and the tables made of them."""
    rng = np.random.default_rng(seed)
    parts, known = [], []
    for k in range(10):
        domains = [str(d) for d in rng.choice(["health", "social", "legal"], 4)]
        rows = [
            [d, d if rng.random() < 0.5 else str(rng.choice(["health", "garden", "unclassified"]))] for d in domains
        ]
        parts.append(memories(rows).assign(entry_id=f"e{k:02d}"))
        known.append(labels(domains).assign(entry_id=f"e{k:02d}"))
    return pd.concat(parts, ignore_index=True), pd.concat(known, ignore_index=True)


def test_the_reading_follows_from_the_numbers(capsys):
    assigned, known = made()
    table = memory_ambiguity(assigned, known)
    accuracy, errors = structurer_accuracy(assigned, known), domain_errors(assigned, known)
    echoed = results(echo=True).assign(echoed=False)
    effect = ambiguity_effect(echoed, gold())
    ambiguity_reading(table, accuracy, errors, effect, labelling_agreement(), echoed)
    said = capsys.readouterr().out
    split = int((table["entropy_bits"] > 0).sum())
    for words in (
        "one family and checked by nobody", "overstates", f"{split} of ", "offline echo measure", "r0: 100 %",
        "echo at K, echo at 1: not available, the reduction is the same in all entries",
        f"mean overlap: {effect['effect'].iloc[8]:+.2f}".replace("-", "−"), "n = 24 entries, and 80 % power",
        "above the majority domain's",
    ):  # fmt: skip
        assert words in said, words
    assert "nan" not in said.replace("finance", "")
    assert ("not distinguishable from 0" in said) == (
        effect["effect_low"].iloc[8] <= 0 <= effect["effect_high"].iloc[8]
    )
    ambiguity_reading(table, accuracy, errors)
    assert "family" not in capsys.readouterr().out  # own labels, no answers
    one = assigned[assigned["rater"] == "r0"]
    ambiguity_reading(
        memory_ambiguity(one), structurer_accuracy(one, known), domain_errors(one, known), effect.iloc[:0]
    )
    said = capsys.readouterr().out
    assert "No memory was sorted by two raters" in said and "No arm has a baseline" in said


def texts(drawn) -> list[str]:
    axes = np.atleast_1d(drawn)[0].figure.axes
    return [text.get_text() for one in axes for text in (*one.texts, *one.get_yticklabels(), one.title)]


def test_the_confusion_picture_prints_every_count():
    assigned, known = made()
    table = confusion(assigned, known)
    panels = figures.confusion_matrix(table)
    assert len(panels) == 2
    for axes, rater in zip(panels, ("r0", "r1"), strict=True):
        mine = table[(table["rater"] == rater) & (table["n_memories"] > 0)]
        cells = [text.get_text() for text in axes.texts if text.get_position()[0] != 1.015]
        assert sorted(cells) == sorted(f"{n:.0f}" for n in mine["n_memories"])
    assert len(figures.confusion_matrix(table[table["rater"] == "r0"], width="column")) == 1
    with pytest.raises(InputError, match="no rows"):
        figures.confusion_matrix(table.iloc[:0])


def test_the_dots_stand_at_the_shares_and_empty_domains_have_a_dash():
    assigned, known = made()
    errors = domain_errors(assigned, known)
    axes = figures.misclassified_by_domain(errors)
    drawn = [line.get_xdata() for line in axes.lines]
    for rater, xs in zip(("r0", "r1"), drawn, strict=True):
        shares = errors.loc[(errors["rater"] == rater) & errors["misclassified_share"].notna(), "misclassified_share"]
        assert np.asarray(xs) == pytest.approx(100 * shares.to_numpy())
    empty = int((errors.groupby("domain")["n_memories"].max() == 0).sum())
    assert texts(axes).count("–") == empty > 0
    with pytest.raises(InputError, match="one to 6 raters"):
        figures.misclassified_by_domain(errors.iloc[:0])


def test_points_are_the_entries_and_the_slope_is_the_tables():
    table, known = results(echo=True), gold()
    rows, effect = entry_reductions(table, known), ambiguity_effect(table, known)
    (axes,) = figures.reduction_by_ambiguity(rows, effect=effect, width="column")
    points = axes.lines[-1]
    assert sorted(points.get_ydata()) == pytest.approx(sorted(rows["mean_score_reduction"]))
    slope = effect.loc[effect["of"] == "mean overlap", "effect"].iloc[0]
    assert f"{slope:+.2f}".replace("-", "−") in axes.get_title(loc="left")
    assert "overlap" in axes.get_ylabel()
    with pytest.raises(InputError, match="measure must be one of"):
        figures.reduction_by_ambiguity(rows, "margin")
    with pytest.raises(InputError, match="nothing to draw"):
        figures.reduction_by_ambiguity(rows.assign(entropy_bits=np.nan))
