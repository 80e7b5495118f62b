"""Entropy, agreement and margin of memories by hand, their properties, and alpha per domain."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from structmem.ambiguity import (
    distinct_raters,
    domain_agreement,
    memory_ambiguity,
    most_ambiguous,
    rater_agreement,
)
from structmem.data import Entry
from structmem.errors import InputError
from structmem.reliability import krippendorff_alpha
from structmem.taxonomy import load_taxonomy

DOMAINS = ["health", "social", "garden", "unclassified"]


def table(given: dict[tuple[str, int], list]) -> pd.DataFrame:
    """Assignments from the domains of raters r0, r1, … of each memory."""
    rows = [(*key, f"r{k}", domain) for key, domains in given.items() for k, domain in enumerate(domains)]
    return pd.DataFrame(rows, columns=["entry_id", "position", "rater", "domain"])


def test_by_hand():
    found = memory_ambiguity(
        table(
            {
                ("e", 1): ["health"] * 4,
                ("e", 2): ["health", "social"] * 2,
                ("e", 3): ["garden", "health", "health", "unclassified"],
                ("e", 4): ["unclassified"] * 4,
                ("f", 1): ["unclassified", "social", None, "unclassified"],
            }
        )
    )
    assert found["entropy_bits"].round(4).tolist()[:3] == [0.0, 1.0, 0.9183]  # 1/3 and 2/3
    assert found["agreement"].round(4).tolist()[:3] == [1.0, 0.3333, 0.3333]
    assert found["margin"].round(4).tolist()[:3] == [1.0, 0.0, 0.3333]
    assert found["n_raters"].tolist() == [4, 4, 3, 0, 1] and found["n_unclassified"].tolist() == [0, 0, 1, 4, 3]
    assert found["modal_domain"].tolist() == ["health", "health", "health", "", "social"]
    assert found["tie"].tolist() == [False, True, False, False, False]
    assert found["domains"].tolist()[1:3] == ["health 2, social 2", "health 2, (new domain) 1"]
    assert math.isnan(found["entropy_bits"][3]) and found["reason"][3] == "no rater gave a domain"
    assert math.isnan(found["agreement"][4]) and found["margin"][4] == 1 and found["reason"][4].startswith("one rater")


ratings = st.lists(st.lists(st.sampled_from(DOMAINS), min_size=3, max_size=3), min_size=1, max_size=12)


@settings(max_examples=15, deadline=None)
@given(ratings, st.permutations(range(3)))
def test_properties(rows, order):
    given = {("e", k): row for k, row in enumerate(rows, start=1)}
    found = memory_ambiguity(table(given))
    assert len(found) == len(rows) and (found["n_raters"] + found["n_unclassified"] == 3).all()
    for row, domains in zip(found.to_dict("records"), rows, strict=True):
        counts = Counter(domain for domain in domains if domain != "unclassified")
        if not counts:
            continue
        shares = [count / counts.total() for count in counts.values()]
        assert row["entropy_bits"] == pytest.approx(-sum(p * math.log2(p) for p in shares))
        assert 0 <= row["entropy_bits"] <= math.log2(len(counts)) + 1e-12
        same = [a == b for i, a in enumerate(domains) for b in domains[i + 1 :] if "unclassified" not in (a, b)]
        assert row["agreement"] == pytest.approx(np.mean(same)) if same else math.isnan(row["agreement"])
        assert 0 <= row["margin"] <= 1 and row["tie"] == (row["margin"] == 0)
    shuffled = {key: [row[k] for k in order] for key, row in given.items()}
    pd.testing.assert_frame_equal(found, memory_ambiguity(table(shuffled)))


def test_twins_keep_their_ids_and_rows_and_texts_are_escaped():
    twins = Entry("e", ["Caf\u00e9 <b>\n## health", "Caf\u00e9 <b>\n## health", "Cafe\u0301", "x" * 400], "Q?")
    found = memory_ambiguity(table({("e", k): ["health", "social"] for k in (1, 2, 3, 4)}))
    shown = most_ambiguous(found, [twins])
    assert shown["position"].tolist() == [1, 2, 3, 4]
    assert shown["text"][0] == shown["text"][1] == "Caf\u00e9 <b>\\n## health"
    assert shown["text"][2] == "Cafe\u0301" != shown["text"][0] and len(shown["text"][3]) == 161
    assert "text" not in most_ambiguous(found)
    with pytest.raises(InputError, match="no memory at position 1 of 'e'"):
        most_ambiguous(found, [Entry("f", ["x"], "Q?")])
    with pytest.raises(InputError, match="whole number"):
        most_ambiguous(found, n=0)


def test_the_most_ambiguous_come_first_and_unrated_ones_never():
    given = {
        ("e", 1): ["health"] * 4,
        ("e", 2): ["unclassified"] * 4,
        ("e", 3): ["health", "social", "legal", "finance"],
    }
    found = memory_ambiguity(table(given | {("e", 4): ["health", "health", "social", "social"]}))
    assert most_ambiguous(found)["position"].tolist() == [3, 4, 1]
    assert most_ambiguous(found, n=1)["entropy_bits"].tolist() == [2.0]


def test_labels_stand_beside():
    labels = pd.DataFrame(
        {
            "entry_id": ["e"],
            "position": [1],
            "domain": ["health"],
            "acceptable": [("health", "social")],
            "spans_domains": [True],
        }
    )
    found = memory_ambiguity(table({("e", 1): ["health", "legal"], ("e", 2): ["health", "legal"]}), labels)
    assert found["acceptable"].tolist() == ["health; social", ""] and found["label"].tolist() == ["health", ""]
    assert found["spans_domains"].tolist() == [True, pd.NA]


def some(n=30, seed=0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    truth = rng.choice(["health", "social", "legal"], n)
    noisy = [[d if rng.random() < 0.8 else str(rng.choice(DOMAINS)) for _ in range(3)] for d in truth]
    return table({(f"e{k // 3}", k % 3 + 1): row for k, row in enumerate(noisy)})


def test_alpha_of_a_domain_is_that_domain_against_the_rest():
    assigned = some()
    found = domain_agreement(assigned).set_index("domain")
    wide = assigned.pivot(index=["entry_id", "position"], columns="rater", values="domain")
    entries = wide.index.get_level_values(0)
    own = wide.map(lambda d: np.nan if d == "unclassified" else float(d == "health"))
    alpha = krippendorff_alpha(own, "nominal", entries).iloc[0]
    assert found.loc["health", ["coefficient", "low", "high"]].tolist() == pytest.approx(
        alpha[["coefficient", "low", "high"]].tolist()
    )
    assert list(found.index) == ["all domains", *load_taxonomy().names, "(new domains)", "unclassified"]
    empty = found.loc["finance"]
    assert empty["n_assigned"] == empty["n_memories"] == 0 and empty["reason"] == "nobody put a memory there"
    assert found["n_assigned"].iloc[1:].sum() == found.loc["all domains", "n_assigned"] == len(assigned)
    assert found.loc["unclassified", "reason"] == "no rating" and math.isnan(found.loc["unclassified", "coefficient"])
    alone = domain_agreement(assigned[assigned["rater"] == "r0"]).set_index("domain")
    assert alone.loc["all domains", "reason"] == "one rater: no agreement" and alone["coefficient"].isna().all()
    assert alone["n_assigned"].iloc[1:].sum() == alone.loc["all domains", "n_assigned"]
    with pytest.raises(InputError, match="no assignments"):
        domain_agreement(assigned.iloc[:0])


def test_a_row_for_missing_domains_and_every_assignment_in_one_row():
    found = domain_agreement(table({("e", 1): ["health", None], ("f", 1): ["health", "social"]})).set_index("domain")
    assert found.loc["(none)", "n_assigned"] == 1 and found["n_assigned"].iloc[1:].sum() == 4


def test_pairs_of_raters_and_names_for_one_opinion():
    assigned = table({("e", 1): ["health", "health", "social"], ("f", 1): ["social", "social", "unclassified"]})
    pairs = rater_agreement(assigned)
    assert pairs[["first", "second", "share", "n_memories"]].values.tolist() == [
        ["r0", "r1", 1.0, 2], ["r0", "r2", 0.0, 1], ["r1", "r2", 0.0, 1],
    ]  # fmt: skip
    assert distinct_raters(assigned)["rater"].unique().tolist() == ["r0", "r2"]
    # A rater of fewer memories that agrees on all of them is no second opinion; one that adds a memory is.
    part = assigned[(assigned["rater"] != "r1") | (assigned["entry_id"] == "e")]
    assert distinct_raters(part)["rater"].unique().tolist() == ["r0", "r2"]
    more = pd.concat([part, table({("g", 1): ["x", "legal", "x"]}).query("rater == 'r1'")])
    assert distinct_raters(more)["rater"].unique().tolist() == ["r0", "r1", "r2"]
