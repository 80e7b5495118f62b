"""Structurers against labels, and one pass of labelling against another, recomputed in other ways."""

from __future__ import annotations

import math
from collections import Counter, defaultdict

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pytest
from hypothesis import given as made_from
from hypothesis import settings
from scipy import stats
from statsmodels.stats.inter_rater import cohens_kappa

from structmem.errors import InputError
from structmem.intervals import clustered_mean, wilson_clustered
from structmem.labelling import labelling_agreement, labelling_by_domain
from structmem.labels import COLUMNS, load_labels
from structmem.reliability import krippendorff_alpha
from structmem.sorting_accuracy import (
    accuracy_differences,
    confusion,
    confusion_grid,
    domain_errors,
    structurer_accuracy,
)
from structmem.taxonomy import load_taxonomy

NAMES = load_taxonomy().names
GIVEN = ["health", "social", "finance", "garden", "unclassified"]


def example(n=60, seed=0, raters=2) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Assignments and labels of n memories in n / 4 entries of two strata."""
    rng = np.random.default_rng(seed)
    rows, labels = [], []
    for k in range(n):
        entry, position = f"e{k // 4:02d}", k % 4 + 1
        domain = str(rng.choice(["health", "social", "finance", "none"], p=[0.6, 0.2, 0.15, 0.05]))
        more = [] if domain == "none" or rng.random() < 0.6 else [str(rng.choice([d for d in NAMES if d != domain]))]
        stratum = "a" if k < n / 2 else "b"
        weight = 1.0 if stratum == "a" else 5.0
        labels.append((entry, position, domain, (domain, *more), False, weight, stratum))
        for rater in range(raters):
            right = "unclassified" if domain == "none" else domain
            rows.append((entry, position, f"r{rater}", right if rng.random() < 0.6 else str(rng.choice(GIVEN))))
    columns = ["entry_id", "position", "domain", "acceptable", "spans_domains", "weight", "stratum"]
    return pd.DataFrame(rows, columns=["entry_id", "position", "rater", "domain"]), pd.DataFrame(
        labels, columns=columns
    )


def by_hand(assigned: pd.DataFrame, labels: pd.DataFrame, rater: str) -> list[tuple]:
    """(entry, primary, acceptable, given, weight) of each memory of a rater; unclassified reads none."""
    known = {(row.entry_id, row.position): row for row in labels.itertuples()}
    mine = assigned[assigned["rater"] == rater]
    return [
        (row.entry_id, known[row.entry_id, row.position].domain, known[row.entry_id, row.position].acceptable,
         row.domain.replace("unclassified", "none"), known[row.entry_id, row.position].weight)
        for row in mine.itertuples()
    ]  # fmt: skip


def test_shares_kappa_and_macro_f1_by_hand():
    assigned, labels = example()
    found = structurer_accuracy(assigned, labels).set_index("rater")
    rows = by_hand(assigned, labels, "r0")
    mine = found.loc["r0"]
    right = np.array([given in some for _, _, some, given, _ in rows], dtype=float)
    assert mine["accuracy"] == pytest.approx(right.mean())
    entries = np.array([row[0] for row in rows])
    assert (mine["accuracy_low"], mine["accuracy_high"]) == pytest.approx(wilson_clustered(right, entries))
    assert mine["primary_accuracy"] == pytest.approx(np.mean([ref == given for _, ref, _, given, _ in rows]))
    lost = sum(given == "none" and given not in some for _, _, some, given, _ in rows)
    assert mine["n_unclassified"] == lost > 0
    assert mine["accuracy"] + mine["misclassified_share"] + lost / len(rows) == pytest.approx(1)
    assert mine["n_new_domain"] == sum(given == "garden" for *_, given, _ in rows)
    classes = sorted({row[1] for row in rows} | {row[3] for row in rows})
    table = np.zeros((len(classes), len(classes)))
    for _, ref, _, given, _ in rows:
        table[classes.index(ref), classes.index(given)] += 1
    assert mine["kappa"] == pytest.approx(cohens_kappa(table).kappa)
    f1 = []
    for domain in {row[1] for row in rows}:
        hits = sum(ref == given == domain for _, ref, _, given, _ in rows)
        precision = hits / max(1, sum(given == domain for *_, given, _ in rows))
        recall = hits / sum(ref == domain for _, ref, *_ in rows)
        f1.append(2 * precision * recall / (precision + recall) if hits else 0.0)
    assert mine["macro_f1"] == pytest.approx(np.mean(f1))
    assert mine["macro_f1_low"] < mine["macro_f1"] < mine["macro_f1_high"]


def test_the_majority_domain_is_the_baseline():
    assigned, labels = example()
    last = structurer_accuracy(assigned, labels).iloc[-1]
    assert last["rater"] == "majority domain (health)" and last["kappa"] == 0 and math.isnan(last["kappa_low"])
    assert last["above_majority_pp"] == 0 and math.isnan(last["above_majority_low_pp"])
    assert last["accuracy"] == pytest.approx(np.mean(["health" in some for some in labels["acceptable"]]))
    assert last["primary_accuracy"] == pytest.approx(labels["domain"].eq("health").mean())


@pytest.mark.parametrize("weighted", [False, True])
def test_accuracy_above_the_majority_domain_is_paired(weighted):
    assigned, labels = example()
    mine = structurer_accuracy(assigned, labels, weighted=weighted).iloc[0]
    rows = by_hand(assigned, labels, "r0")
    gaps = np.array([100.0 * ((row[3] in row[2]) - ("health" in row[2])) for row in rows])
    weights = np.array([row[4] for row in rows]) if weighted else np.ones(len(rows))
    mean = np.average(gaps, weights=weights)
    sums = pd.Series(weights * (gaps - mean)).groupby([row[0] for row in rows]).sum()
    if weighted:  # e00 to e06 are of one stratum; e07 has both weights, its halves are of either
        strata = labels["stratum"].to_numpy()
        sums = pd.Series(weights * (gaps - mean)).groupby([strata, [row[0] for row in rows]]).sum()
        variance = sum(len(one) * one.var(ddof=1) for _, one in sums.groupby(level=0))
        half = stats.t.ppf(0.975, len(sums) - 2) * math.sqrt(variance) / weights.sum()
    else:
        half = stats.t.ppf(0.975, len(sums) - 1) * math.sqrt(len(sums) * sums.var(ddof=1)) / len(rows)
    found = mine[["above_majority_pp", "above_majority_low_pp", "above_majority_high_pp"]].astype(float)
    assert found.tolist() == pytest.approx([mean, mean - half, mean + half])


def test_weights_do_not_stand_for_a_rater_of_a_part():
    assigned, labels = example()
    part = assigned[(assigned["rater"] == "r0") | assigned["entry_id"].lt("e05")]
    found = structurer_accuracy(part, labels, weighted=True).set_index("rater")["weighting"]
    assert found["r0"] == "sampling weights" and found["r1"] == "sampling weights, but of a part of the sample"
    assert set(structurer_accuracy(part, labels)["weighting"]) == {"every memory alike"}


def test_a_difference_says_how_much_of_it_new_domains_make():
    assigned, labels = example()
    found = accuracy_differences(assigned, labels).iloc[0]
    wide = assigned.pivot(index=["entry_id", "position"], columns="rater", values="domain")
    some = labels.set_index(["entry_id", "position"])["acceptable"]
    said = lambda given: "none" if given == "unclassified" else given  # noqa: E731
    lost = sum(a in ok and b == "garden" for a, b, ok in zip(wide["r0"].map(said), wide["r1"], some, strict=True))
    assert lost and f"{lost} of these are in new domains of r1" in found["remark"]


def test_weights_by_the_ratio_estimator_of_a_stratified_sample():
    assigned, labels = example()
    mine = structurer_accuracy(assigned, labels, weighted=True).iloc[0]
    rows = by_hand(assigned, labels, "r0")
    total = sum(row[4] for row in rows)
    share = sum(row[4] for row in rows if row[3] in row[2]) / total
    assert mine["accuracy"] == pytest.approx(share)
    sums = defaultdict(float)
    for entry, _, some, given, weight in rows:
        sums["a" if weight == 1 else "b", entry] += weight * ((given in some) - share)
    variance = 0.0
    for stratum in "ab":
        values = np.array([value for (name, _), value in sums.items() if name == stratum])
        variance += len(values) * values.var(ddof=1)
    half = stats.t.ppf(0.975, len(sums) - 2) * math.sqrt(variance) / total
    assert (mine["accuracy_low"], mine["accuracy_high"]) == pytest.approx((share - half, share + half))
    assert mine["weighting"] == "sampling weights" and mine["accuracy_interval"] == "t over entries within strata"


@settings(max_examples=8, deadline=None)
@made_from(
    st.lists(st.tuples(st.sampled_from([*GIVEN, None]), st.sampled_from([*NAMES, "none"])), min_size=1, max_size=12)
)
def test_confusion_totals_are_the_memories(pairs):
    if all(reference == "none" for _, reference in pairs):
        pairs = [*pairs, ("health", "health")]
    assigned = pd.DataFrame(
        [(f"e{k % 3}", k, "r", d) for k, (d, _) in enumerate(pairs, 1)],
        columns=["entry_id", "position", "rater", "domain"],
    )
    labels = pd.DataFrame(
        [(f"e{k % 3}", k, d, (d,), False, 2.0, "s") for k, (_, d) in enumerate(pairs, 1)],
        columns=["entry_id", "position", "domain", "acceptable", "spans_domains", "weight", "stratum"],
    )
    table = confusion(assigned, labels)
    assert table["n_memories"].sum() == len(pairs)
    assert confusion(assigned, labels, weighted=True)["n_memories"].sum() == 2 * len(pairs)
    assert table.groupby("reference")["n_memories"].sum().to_dict() == {
        **dict.fromkeys(NAMES, 0), **Counter(reference for _, reference in pairs)
    }  # fmt: skip
    missing = sum(given is None for given, _ in pairs)
    assert table.loc[table["assigned"] == "(none)", "n_memories"].sum() == missing
    shares = table.groupby("reference")["row_share"].sum(min_count=1).dropna()
    assert np.allclose(shares, 1)
    grid = confusion_grid(table)
    assert grid["memories"].sum() == len(pairs)
    assert (grid.drop(columns=["rater", "reference", "memories"]).sum(axis=1) == grid["memories"]).all()
    # The same memories per domain, whichever way they are counted.
    errors = domain_errors(assigned, labels)
    assert errors["n_memories"].sum() == len(pairs)
    assert errors["n_memories"].iloc[:11].tolist() == [
        sum(reference == name for _, reference in pairs) for name in NAMES
    ]


def test_every_domain_has_a_row_and_says_where_its_memories_went():
    assigned, labels = example()
    found = domain_errors(assigned, labels).query("rater == 'r0'").set_index("domain")
    assert list(found.index) == [*NAMES, "none"]
    empty = found.loc["legal"]
    assert empty["n_memories"] == 0 and math.isnan(empty["misclassified_share"])
    assert empty["reason"] == "no memory of this domain" and math.isnan(empty["misclassified_low"])
    rows = [row for row in by_hand(assigned, labels, "r0") if row[1] == "health"]
    wrong = [row[3].replace("garden", "(new domains)") for row in rows if row[3] not in (*row[2], "none")]
    health = found.loc["health"]
    assert (health["n_memories"], health["n_misclassified"]) == (len(rows), len(wrong))
    top = max(Counter(wrong).items(), key=lambda pair: (pair[1], [-ord(c) for c in pair[0]]))
    assert health["confused_with"].startswith(f"{top[0]} {top[1]}")
    placed = domain_errors(assigned, labels, by="assigned").query("rater == 'r0'")
    assert placed["n_memories"].sum() == sum(row[3] != "none" for row in by_hand(assigned, labels, "r0"))
    with pytest.raises(InputError, match="by must be one of"):
        domain_errors(assigned, labels, by="text")


def test_differences_are_paired_on_the_memories_that_both_sorted():
    assigned, labels = example()
    part = assigned[(assigned["rater"] == "r0") | (assigned["entry_id"] < "e10")]
    row = accuracy_differences(part, labels).iloc[0]
    gaps, entries = [], []
    for one, two in zip(by_hand(part, labels, "r0"), by_hand(part, labels, "r1"), strict=False):
        gaps.append(100.0 * ((two[3] in two[2]) - (one[3] in one[2])))
        entries.append(two[0])
    assert row["n_memories"] == len(gaps) == 40 and row["difference_pp"] == pytest.approx(np.mean(gaps))
    assert (row["low_pp"], row["high_pp"]) == pytest.approx(clustered_mean(np.array(gaps), np.array(entries)))
    assert row["n_only_rater_right"] == gaps.count(100.0) and row["n_only_baseline_right"] == gaps.count(-100.0)
    with pytest.raises(InputError, match="baseline must be one of"):
        accuracy_differences(part, labels, baseline="r9")


def test_what_cannot_be_compared_is_said():
    assigned, labels = example()
    with pytest.raises(InputError, match="no assignments"):
        structurer_accuracy(assigned.iloc[:0], labels)
    with pytest.raises(InputError, match="sorted no labelled memory"):
        structurer_accuracy(assigned, labels.assign(entry_id="x" + labels["entry_id"]))
    with pytest.raises(InputError, match="60 memories have two labels"):
        structurer_accuracy(assigned, pd.concat([labels, labels]))
    with pytest.raises(InputError, match="wrong or lacking"):
        structurer_accuracy(assigned, labels.drop(columns="weight"))
    some = structurer_accuracy(assigned, labels[labels["entry_id"] < "e05"]).iloc[0]
    assert some["n_unlabelled"] == 40 and some["n_memories"] == 20
    one = structurer_accuracy(assigned[assigned["entry_id"] == "e00"], labels)
    assert one["kappa_low"].isna().all() and one["interval"].str.startswith("not available").all()
    none = accuracy_differences(assigned[assigned["rater"] == "r0"], labels)
    assert len(none) == 0 and "difference_pp" in none


def test_agreement_of_the_shipped_passes_against_other_implementations():
    table = labelling_agreement()
    one, two = load_labels("pass_1"), load_labels("pass_2")
    plain = table[table["weighting"] == "every memory alike"].set_index(["of", "measure"])
    same = (one["domain"] == two["domain"]).to_numpy()
    assert plain.loc[("primary domain", "raw agreement"), "coefficient"] == pytest.approx(same.mean())
    codes = pd.Categorical([*one["domain"], *two["domain"]]).codes.reshape(2, -1).T.astype(float)
    alpha = krippendorff_alpha(codes, "nominal", one["entry_id"]).iloc[0]
    mine = plain.loc[("primary domain", "Krippendorff's alpha, nominal")]
    assert mine[["coefficient", "low", "high"]].tolist() == pytest.approx(
        alpha[["coefficient", "low", "high"]].tolist()
    )
    kappa = cohens_kappa(
        pd.crosstab(codes[:, 0], codes[:, 1]).reindex(index=range(12), columns=range(12), fill_value=0)
    ).kappa
    assert plain.loc[("primary domain", "Cohen's kappa"), "coefficient"] == pytest.approx(kappa)
    jaccard = [len({*a} & {*b}) / len({*a} | {*b}) for a, b in zip(one["acceptable"], two["acceptable"], strict=True)]
    assert plain.loc[("acceptable sets", "mean Jaccard index"), "coefficient"] == pytest.approx(np.mean(jaccard))
    weighted = table[table["weighting"] == "sampling weights"].set_index(["of", "measure"])
    share = np.average(same, weights=one["weight"])
    assert weighted.loc[("primary domain", "raw agreement"), "coefficient"] == pytest.approx(share)
    assert (table["n_memories"] == 668).all() and (table["n_entries"] == 67).all()


def passes(tmp_path, first: list[str], second: list[str]) -> list[str]:
    for name, domains in (("one", first), ("two", second)):
        lines = [f"e{k // 2},{k % 2 + 1},{domain},{domain},0" for k, domain in enumerate(domains)]
        (tmp_path / f"{name}.csv").write_text("\n".join([",".join(COLUMNS), *lines]) + "\n")
    return [str(tmp_path / "one.csv"), str(tmp_path / "two.csv")]


def test_agreement_by_domain_by_hand(tmp_path):
    files = passes(tmp_path, ["health", "health", "social", "legal"], ["health", "social", "social", "legal"])
    found = labelling_by_domain(*files).set_index("domain")
    assert found.loc["health", ["n_first", "n_second", "n_both"]].tolist() == [2, 1, 1]
    assert found.loc["health", "share"] == pytest.approx(2 / 3) and found.loc["legal", "share"] == 1
    assert math.isnan(found.loc["finance", "share"]) and found.loc["finance", "reason"] == "no memory in either pass"
    assert list(found.index) == list(NAMES)
    table = labelling_agreement(*files)
    assert table["weighting"].unique().tolist() == ["every memory alike"]
    spans = table[(table["of"] == "spans_domains") & (table["measure"] == "Cohen's kappa")].iloc[0]
    assert spans["reason"] == "undefined: one class" and math.isnan(spans["coefficient"])


def test_a_pass_over_a_part_is_compared_on_that_part(tmp_path):
    long, short = ["health", "health", "social", "legal"], ["health", "social", "social"]
    part = labelling_agreement(*passes(tmp_path, long, short))
    whole = labelling_agreement(*passes(tmp_path, long[:3], short))
    assert set(part["n_left_out"]) == {1} and set(whole["n_left_out"]) == {0}
    pd.testing.assert_frame_equal(part.drop(columns="n_left_out"), whole.drop(columns="n_left_out"))
    assert part["coefficient"].iloc[0] == pytest.approx(2 / 3) and set(part["n_memories"]) == {3}
    first, second = passes(tmp_path, long, short)
    (tmp_path / "two.csv").write_text(",".join(COLUMNS) + "\nother,1,health,health,0\n")
    with pytest.raises(InputError, match="no memory in common"):
        labelling_agreement(first, second)
