"""Sorting the same memories in several ways, and what each makes of them; the figures drawn from that."""

import json
import math

import numpy as np
import pandas as pd
import pytest

from structmem import figures
from structmem.data import load_entries
from structmem.describe import count_tokens
from structmem.errors import InputError, MissingCall
from structmem.partition_agreement import sorting_agreement
from structmem.quality import domains_of
from structmem.renderers import render
from structmem.sorting import domain_shares, sort_each, sorting_hits, sorting_shapes
from structmem.structures import structure
from structmem.taxonomy import load_taxonomy
from structmem.variants import run_settings, vary

ENTRIES = load_entries("examples", ["cross_domain"])


def model(messages, request):
    """Everything is personal, but for the first memory of draw 1, and for one that nobody can place."""
    numbers = [line.split(".")[0] for line in messages[1]["content"].splitlines() if line[:1].isdigit()]
    first = {"memory": 1, "domain": "health" if request.replicate else "personal"}
    rest = [{"memory": int(k), "domain": "personal"} for k in numbers[1:-1]]
    return json.dumps({"assignments": [first, *rest, {"memory": int(numbers[-1]), "domain": "none"}]})


model.model_id = "test/sorter"
SORTERS = vary({"structurer": model}, partition_draw=[0, 1]) | {"embedding": {}, "coarse": {"taxonomy": "coarse5"}}


@pytest.fixture(scope="module")
def nodes():
    return sort_each(ENTRIES, SORTERS, store=":memory:")


def test_every_way_sorts_every_entry_as_structure_does(nodes):
    assert list(nodes) == list(SORTERS) and all(len(found) == len(ENTRIES) for found in nodes.values())
    assert nodes["embedding"] == [structure(entry.memories, "fixed") for entry in ENTRIES]
    assert nodes["coarse"] == [structure(entry.memories, "fixed", taxonomy="coarse5") for entry in ENTRIES]
    assert domains_of(nodes["draw 1"][0])[0] == "health" and domains_of(nodes["draw 0"][0])[0] == "personal"


def test_offline_names_the_call_that_is_missing():
    with pytest.raises(MissingCall):
        sort_each(ENTRIES[:1], {"m": {"structurer": "openai/some"}}, store=":memory:", offline=True)


def test_shapes_are_what_counting_gives(nodes):
    table = sorting_shapes(nodes, SORTERS, ENTRIES).set_index("sorter")
    n = sum(len(entry.memories) for entry in ENTRIES)
    assert (table["memories"] == n).all()
    assert table.loc["draw 0", "unclassified_share"] == pytest.approx(len(ENTRIES) / n)
    assert table.loc["draw 0", "largest_domain"] == "personal" and table.loc["draw 0", "evenness_bits"] == 0
    shares = pd.Series([d for node in nodes["embedding"] for d in domains_of(node)]).value_counts(normalize=True)
    assert table.loc["embedding", "evenness_bits"] == pytest.approx(-(shares * np.log2(shares)).sum())
    assert table.loc["embedding", "largest_share"] == pytest.approx(shares.max())
    assert table["domains"].to_dict() == {"draw 0": 11, "draw 1": 11, "embedding": 11, "coarse": 5}
    added = [
        count_tokens([render(node, "markdown")])[0]
        - count_tokens([render(structure(e.memories, "flat"), "markdown")])[0]
        for e, node in zip(ENTRIES, nodes["coarse"], strict=True)
    ]
    assert table.loc["coarse", "tokens_added"] == pytest.approx(np.mean(added))
    with pytest.raises(InputError, match="has 1 layouts for"):
        sorting_shapes({"draw 0": nodes["draw 0"][:1]}, SORTERS, ENTRIES)


def test_domain_shares_add_up_and_keep_the_order(nodes):
    three = {name: nodes[name] for name in ("draw 0", "draw 1", "embedding")}
    table = domain_shares(three)
    assert list(table) == ["domain", "draw 0_share", "draw 1_share", "embedding_share"]
    assert table.drop(columns="domain").sum().to_list() == pytest.approx([1, 1, 1])
    assert tuple(table["domain"][:11]) == load_taxonomy().names


def test_hits_are_counted_in_each_taxonomy(nodes):
    labelled = [entry for entry in ENTRIES if entry.memory_domain in load_taxonomy().accepted]
    if not labelled:
        with pytest.raises(InputError):
            sorting_hits(nodes, SORTERS, ENTRIES)
        return
    table = sorting_hits(nodes, SORTERS, ENTRIES)
    assert set(table["taxonomy"]) == {"life11", "coarse5"} and table["hit"].between(0, 1).all()


def test_vary_names_what_differs_and_run_settings_says_it_to_a_run():
    assert list(vary(wording=[0, 1], structurer=["a/b", "c"])) == [
        "wording 0, a/b", "wording 0, c", "wording 1, a/b", "wording 1, c",
    ]  # fmt: skip
    assert list(vary({"temperature": 0.7}, partition_draw=[3], wording=[1, 2])) == ["wording 1", "wording 2"]
    assert vary({"x": 1}, taxonomy=["life11"]) == {"life11": {"x": 1, "taxonomy": "life11"}}
    assert vary({"x": 1}) == {"": {"x": 1}}
    for bad in ([], [1, 1]):
        with pytest.raises(InputError, match="wording"):
            vary(wording=bad)
    settings = run_settings({"a": {"structurer": "m", "partition_draw": 1, "wording": 2}, "b": {"taxonomy": "mem0"}})
    assert settings["a"] == {
        "structurers": ["m"], "partition_draws": [1], "structurer_options": {"wording": 2},
    }  # fmt: skip
    assert settings["b"] == {"taxonomies": ["mem0"]}


# -- figures ----------------------------------------------------------------------------------------------------------


def texts(axes):
    return [text.get_text() for text in axes.texts]


@pytest.mark.parametrize("width", ["page", "column"])
def test_the_triangle_prints_every_pair(nodes, width):
    agreement = sorting_agreement(nodes, ENTRIES, SORTERS)
    axes = figures.sorter_agreement(agreement, width)
    assert len(texts(axes)) == len(agreement) == 6
    shown = [("–" if math.isnan(v) else f"{v + 0.0:.2f}".replace("-", "−")) for v in agreement["ari"]]
    assert sorted(texts(axes)) == sorted(word.replace("−0.00", "0.00") for word in shown)
    assert "adjusted Rand index" in axes.figure.alt_text
    with pytest.raises(InputError, match="no pair of raters"):
        figures.sorter_agreement(agreement.iloc[:0])


def panels():
    names = ["life11", "coarse5"]
    shapes = pd.DataFrame({"taxonomy": names, "tokens_added": [20.0, 15.0], "tokens_low": [17, 12], "tokens_high": 22})
    hits = pd.DataFrame({"taxonomy": names, "labels": "all", "n": 20, "hit": [0.8, 1.0], "low": 0.6, "high": 1.0})
    hits["chance"] = [0.5, 0.9]
    effects = pd.DataFrame({"level": [*names, "coarse5"], "against": ["flat", "flat", "life11"], "baseline": "flat"})
    effects["mean_score_difference"] = [0.1, math.nan, 0.3]
    return shapes, hits, effects.assign(mean_score_low=0.0, mean_score_high=0.2, n_entries=20, outcome="echo")


@pytest.mark.parametrize("width", ["page", "column"])
def test_taxonomy_panels_draw_what_the_tables_say(width):
    shapes, hits, effects = panels()
    grid = figures.taxonomy_panels(shapes, hits, effects, width=width)
    marks = [[line.get_xdata()[0] for line in axes.lines if line.get_marker() == "s"] for axes in grid]
    assert marks == [[20, 15], [80, 100], [0.1]]
    chance = [line.get_xdata()[0] for line in grid[1].lines if line.get_color() == "#D55E00"]
    assert chance == [50, 90] and texts(grid[2]) == ["none"]
    drawn = grid[0].figure.drawn_rows.set_index("taxonomy")
    assert drawn["tokens_added"].tolist() == [20, 15] and drawn["hit"].tolist() == [0.8, 1.0]
    assert drawn.loc["life11", "mean_score_difference"] == 0.1 and len(drawn) == 2
    assert len(figures.taxonomy_panels(shapes, hits, width=width)) == 2
    assert "not leakage" in grid[0].figure._supxlabel.get_text().replace("\n", " ")
    with pytest.raises(InputError, match="labels must be one of"):
        figures.taxonomy_panels(shapes, hits, effects, labels="some")
    with pytest.raises(InputError, match="select one of them first"):
        figures.taxonomy_panels(shapes, hits, pd.concat([effects.assign(structure="fixed"), effects]))


def variance():
    parts = ["entry", "prompt", "prompt × entry", "draw", "generation"]
    table = pd.DataFrame({"component": parts, "variance": [4.0, 1.0, -0.5, math.nan, 2.0]})
    table["low"], table["high"] = [1.0, -0.2, -1.0, math.nan, 1.0], [7.0, 90.0, 0.5, math.nan, 3.0]
    table["reading"] = ["above 0", "compatible with 0", "compatible with 0", "not available: one draw", "above 0"]
    return table.assign(measure="mean score", unit="score", levels=3, n_entries=8, model="m", arm="fixed")


@pytest.mark.parametrize("width", ["page", "column"])
def test_variance_parts_show_negative_estimates_and_cut_what_runs_on(width):
    axes = figures.variance_parts(variance(), width=width)
    assert [line.get_xdata()[0] for line in axes.lines if line.get_marker() == "s"] == [4, 1, -0.5, 2]
    assert "one draw" in texts(axes) and "90" in texts(axes) and axes.get_xlim()[1] < 90
    with pytest.raises(InputError, match="measure must be one of"):
        figures.variance_parts(variance(), "echo rate")
    with pytest.raises(InputError, match="no rows"):
        figures.variance_parts(variance().iloc[:0])
