"""Agreement of partitions: the adjusted Rand index against counted pairs and hand-worked values, and its tables."""

from itertools import combinations
from math import isnan, nan

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from structmem.data import Entry
from structmem.errors import InputError
from structmem.partition_agreement import (
    adjusted_rand,
    agreement_by_difference,
    agreement_of_all,
    agreement_reading,
    sorting_agreement,
)
from structmem.tables import show
from structmem.tree import UNCLASSIFIED, Node


def by_counting(first, second):
    """Hubert and Arabie's index from every pair of things, one by one."""
    pairs = list(combinations(range(len(first)), 2))
    one = np.array([first[i] == first[j] for i, j in pairs], dtype=float)
    other = np.array([second[i] == second[j] for i, j in pairs], dtype=float)
    chance, most = one.sum() * other.sum() / len(pairs), (one.sum() + other.sum()) / 2
    return nan if most == chance else ((one * other).sum() - chance) / (most - chance)


labels = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=12)


@given(labels)
def test_the_index_is_what_counting_pairs_gives(pairs):
    first, second = zip(*pairs, strict=True)
    assert adjusted_rand(first, second) == pytest.approx(by_counting(first, second), nan_ok=True)
    assert adjusted_rand(second, first) == pytest.approx(adjusted_rand(first, second), nan_ok=True)


@given(labels, st.permutations("wxyz"))
def test_names_of_groups_do_not_count(pairs, names):
    first, second = zip(*pairs, strict=True)
    renamed = [names[group] for group in second]
    assert adjusted_rand(first, renamed) == pytest.approx(adjusted_rand(first, second), nan_ok=True)


def test_known_values():
    # Worked by hand: groups {1,2,3}, {4,5,6} against {1,2}, {3,4}, {5,6}: 2 of 15 pairs in both, 6 and 3 in each.
    assert adjusted_rand("aaabbb", "xxyyzz") == pytest.approx((2 - 6 * 3 / 15) / (4.5 - 6 * 3 / 15))
    assert adjusted_rand("aabbc", "xxyyz") == 1
    assert all(isnan(adjusted_rand(*same)) for same in (("aaa", "bbb"), ("abc", "xyz"), ("a", "a"), ("", "")))
    assert adjusted_rand("aaa", "abc") == 0
    with pytest.raises(InputError, match="one label each, got 2 and 3"):
        adjusted_rand("ab", "abc")


def test_random_partitions_agree_by_chance_on_average():
    rng = np.random.default_rng(5)
    found = [adjusted_rand(rng.integers(0, 3, 8), rng.integers(0, 3, 8)) for _ in range(1000)]
    assert abs(np.nanmean(found)) < 0.03


def entries_and_nodes(**sorted_by):
    """Entries e0, e1, … and layouts from words such as 'aab', one letter a memory; '-' is unclassified."""
    n = len(next(iter(sorted_by.values())))
    sizes = [len(words[0]) for words in zip(*sorted_by.values(), strict=True)]
    entries = [Entry(f"e{i}", tuple(f"User does {i}.{j}." for j in range(size)), "?") for i, size in enumerate(sizes)]
    assert len(entries) == n
    nodes = {}
    for rater, words in sorted_by.items():
        nodes[rater] = []
        for entry, word in zip(entries, words, strict=True):
            groups = {}
            for memory, letter in zip(entry.memories, word, strict=True):
                groups.setdefault(UNCLASSIFIED if letter == "-" else letter, []).append(memory)
            children = tuple(Node(name, tuple(held)) for name, held in groups.items())
            nodes[rater].append(Node(None, children=children))
    return entries, nodes


def test_the_mean_over_sets_with_its_interval_and_what_is_left_out():
    one, two = ["aabb", "aab", "aaa", "ab-a"], ["aabb", "aba", "aaa", "ba-b"]
    entries, nodes = entries_and_nodes(one=one, two=two)
    row = sorting_agreement(nodes, entries).iloc[0]
    each = [1.0, by_counting("aab", "aba"), by_counting("aba", "bab")]
    mean, error = np.mean(each), stats.sem(each)
    assert row["ari"] == pytest.approx(mean)
    assert row["high"] == pytest.approx(min(1, mean + stats.t.ppf(0.975, 2) * error))
    assert (row["n_sets"], row["n_undefined"], row["n_memories"], row["n_unclassified"]) == (3, 1, 13, 1)
    assert row["same_domain_share"] == pytest.approx((4 + 1 + 3 + 0) / 13)


def test_alpha_is_that_of_the_names_with_sets_as_clusters():
    entries, nodes = entries_and_nodes(one=["aabb", "aab-"], two=["aaba", "abbb"])
    row = sorting_agreement(nodes, entries).iloc[0]
    # Nominal alpha by hand: 7 memories with two names each; the 14 names are 8 a and 6 b; 2 of 7 memories differ.
    assert row["alpha"] == pytest.approx(1 - (2 / 7) / (2 * 8 * 6 / (14 * 13)))
    assert agreement_of_all(nodes, entries)["coefficient"].iloc[0] == pytest.approx(row["alpha"])
    assert agreement_of_all(nodes, entries)["n_units"].iloc[0] == 7


def test_the_same_memories_under_two_queries_count_once():
    entries, nodes = entries_and_nodes(one=["aab", "abb"], two=["abb", "aba"])
    again = [*entries, Entry("e9", entries[0].memories, "another?")]
    more = {rater: [*found, found[0]] for rater, found in nodes.items()}
    pd.testing.assert_frame_equal(sorting_agreement(more, again), sorting_agreement(nodes, entries))


def test_raters_are_told_apart_by_their_settings():
    words = ["aabb", "aabc"]
    sorters = {
        "draw 0": {"structurer": "m", "wording": 0, "temperature": 0.7},
        "draw 1": {"structurer": "m", "wording": 0, "temperature": 0.7, "partition_draw": 1},
        "alone": {"structurer": "m", "wording": 0, "temperature": 0.7, "per_memory": True},
        "embedding": {},
        "coarse": {"taxonomy": "coarse5"},
    }
    entries, nodes = entries_and_nodes(**dict.fromkeys(sorters, words))
    table = sorting_agreement(nodes, entries, sorters).set_index(["rater_1", "rater_2"])
    differ = table["differ_in"].to_dict()
    assert differ["draw 0", "draw 1"] == "draw"
    assert differ["draw 0", "alone"] == "one call per memory"
    assert differ["draw 1", "embedding"] == "structurer"
    assert differ["embedding", "coarse"] == "taxonomy"
    assert differ["draw 1", "coarse"] == "structurer and taxonomy"
    coarse = table.loc[("embedding", "coarse")]
    assert isnan(coarse["alpha"]) and coarse["alpha_interval"] == "not available: other taxonomies"
    assert coarse["ari"] == 1 and coarse["interval"] == "not available: no variation"
    with pytest.raises(InputError, match="sorters has no settings of 'coarse'"):
        sorting_agreement(nodes, entries, {name: {} for name in list(sorters)[:-1]})


def test_pairs_that_differ_alike_are_taken_together():
    sorters = {f"draw {k}": {"structurer": "m", "partition_draw": k} for k in range(3)}
    entries, nodes = entries_and_nodes(**{"draw 0": ["aabb"] * 2, "draw 1": ["abab", "abba"], "draw 2": ["aabb"] * 2})
    table = agreement_by_difference(nodes, entries, sorters)
    assert len(table) == 1 and table["n_pairs"].iloc[0] == 3
    assert table["ari"].iloc[0] == pytest.approx((1 - 0.5 - 0.5) / 3)
    assert (table["lowest"].iloc[0], table["highest"].iloc[0]) == (pytest.approx(-0.5), 1)


def test_no_agreement_of_one_rater_and_the_reading_says_what_it_is(capsys):
    entries, nodes = entries_and_nodes(one=["aabb", "aab"])
    with pytest.raises(InputError, match="two raters or more"):
        sorting_agreement(nodes, entries)
    entries, nodes = entries_and_nodes(one=["aabb", "abab", "aaa"], two=["abab", "abba", "aaa"])
    sorters = {"one": {"structurer": "m"}, "two": {"structurer": "m", "partition_draw": 1}}
    table = agreement_by_difference(nodes, entries, sorters)
    agreement_reading(table, agreement_of_all(nodes, entries))
    said = capsys.readouterr().out
    assert "Raters that differ in draw (1 pair, 2 memory sets): ARI -0.50" in said
    assert "report several draws" in said and "may all be wrong" in said
    agreement_reading(agreement_by_difference(*reversed(entries_and_nodes(one=["aaa"], two=["aaa"])), sorters))
    assert "no set says anything" in capsys.readouterr().out
    assert "nan" not in str(show(sorting_agreement(nodes, entries, sorters)))
