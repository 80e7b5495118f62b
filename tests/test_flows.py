"""Flows against hand-worked grids, the paired table and counting by hand."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from test_stats import arm, echoed, frames, lose, rows

from structmem import figures
from structmem.columns import empty_results
from structmem.comparisons import paired_differences
from structmem.data import Entry, load_entries
from structmem.errors import InputError
from structmem.flows import ALL, DOMAINS, domain_flows, flow_counts, flow_grid, flow_reading
from structmem.intervals import tango
from structmem.taxonomy import load_taxonomy

HEALTH, WORK, BELIEFS = (list(DOMAINS)[k] for k in (0, 3, 7))
# 12 entries health → work, 2 work → health, 1 beliefs → work
LABELS = [(HEALTH, WORK)] * 12 + [(WORK, HEALTH)] * 2 + [(BELIEFS, WORK)]
FLAT = [1] * 8 + [0] * 4 + [1, 0] + [1]
FIXED = [1, 1, 0, 0, 0, 0, 0, 0] + [1, 0, 0, 0] + [0, 0] + [1]


def labelled(table, labels=LABELS):
    pairs = [labels[int(entry[1:])] for entry in table["entry_id"]]
    return table.assign(memory_domain=[m for m, _ in pairs], query_domain=[q for _, q in pairs])


def cell(table, memory, query, **keys):
    for name, value in {"memory_domain": memory, "query_domain": query, **keys}.items():
        table = table[table[name] == value]
    (row,) = table.to_dict("records")
    return row


@pytest.fixture(scope="module")
def study():
    return labelled(frames(arm(FLAT), arm(FIXED, structure="fixed")))


@pytest.fixture(scope="module")
def flows(study):
    return domain_flows(study)


def test_the_nine_labels_are_the_benchmarks():
    assert list(DOMAINS) == list(load_taxonomy("benchmark9").names)
    assert set(DOMAINS) == {e.memory_domain for e in load_entries("persistbench", ["cross_domain"])}
    assert len(set(DOMAINS.values())) == 9 and max(map(len, DOMAINS.values())) <= 10


def test_cells_and_margins_by_hand(study, flows):
    table = flows
    assert len(table) == 100 and set(table["unit"]) == {"entry"} and set(table["analysis"]) == {"exploratory"}
    # health → work: flat 8 of 12; fixed 2 of those 8 and 1 of the other 4
    row = cell(table, HEALTH, WORK)
    assert (row["n_entries"], row["rate_baseline"], row["rate_arm"]) == (12, 8 / 12, 3 / 12)
    assert row["difference_pp"] == pytest.approx(-100 * 5 / 12)
    assert (row["low_pp"] / 100, row["high_pp"] / 100) == pytest.approx(tango(1, 6, 12))
    assert row["mean_score_baseline"] == pytest.approx(1 + 4 * 8 / 12)
    changes = [4 * (b - a) for a, b in zip(FLAT[:12], FIXED[:12], strict=True)]
    ends = stats.t.interval(0.95, 11, np.mean(changes), stats.sem(changes))
    assert (row["mean_score_low"], row["mean_score_high"]) == pytest.approx(ends)
    few = cell(table, WORK, HEALTH)
    assert (few["n_entries"], few["rate_baseline"], few["rate_arm"]) == (2, 0.5, 0.0)
    assert math.isnan(few["difference_pp"]) and math.isnan(few["mean_score_difference"])
    assert few["remark"] == "fewer than 10 entries" and few["interval"] == "not available: fewer than 10 entries"
    empty = cell(table, WORK, WORK)
    assert empty["n_entries"] == 0 and math.isnan(empty["rate_baseline"])
    assert cell(table, ALL, WORK)["n_entries"] == 13 and cell(table, BELIEFS, ALL)["n_entries"] == 1
    total, paired = cell(table, ALL, ALL), paired_differences(study).iloc[0]
    for name in ("difference_pp", "low_pp", "high_pp", "rate_baseline", "rate_arm", "mean_score_difference"):
        assert total[name] == pytest.approx(paired[name])


def test_every_entry_is_in_one_cell(flows):
    table = flows
    inner = table[(table["memory_domain"] != ALL) & (table["query_domain"] != ALL)]
    assert inner["n_entries"].sum() == 15 and len(inner) == 81
    assert list(dict.fromkeys(table["memory_domain"])) == [*DOMAINS, ALL]


def test_an_entry_counts_once_over_runs():
    again = [arm(FLAT, replicate=1), arm([0] * 15, structure="fixed", replicate=1)]
    table = domain_flows(labelled(frames(arm(FLAT), arm(FIXED, structure="fixed"), *again)))
    row = cell(table, HEALTH, WORK, arm="fixed")
    assert (row["n_entries"], row["n_pairs"], row["n_runs"]) == (12, 24, 2)
    means = [((b - a) + (0 - a)) / 2 for a, b in zip(FLAT[:12], FIXED[:12], strict=True)]
    assert row["difference_pp"] == pytest.approx(100 * np.mean(means)) and row["interval"] == "t over entries"
    ends = stats.t.interval(0.95, 11, 100 * np.mean(means), 100 * stats.sem(means))
    assert (row["low_pp"], row["high_pp"]) == pytest.approx(ends)
    assert "flat (A/A)" in set(table["arm"])


def test_several_models_have_a_row_for_all():
    other = [arm(FLAT, model="n"), arm(FLAT, model="n", structure="fixed")]
    table = domain_flows(labelled(frames(arm(FLAT), arm(FIXED, structure="fixed"), *other)))
    assert list(dict.fromkeys(table["model"])) == ["m", "n", "all models"]
    assert cell(table, HEALTH, WORK, model="all models")["difference_pp"] == pytest.approx(-100 * 5 / 12 / 2)
    assert cell(table, HEALTH, WORK, model="n")["difference_pp"] == 0


def test_incomplete_entries_are_left_out_and_counted(study):
    table = domain_flows(lose(study, [0, 12]))
    assert (cell(table, HEALTH, WORK)["n_entries"], cell(table, HEALTH, WORK)["n_left_out"]) == (11, 1)
    assert (cell(table, WORK, HEALTH)["n_entries"], cell(table, WORK, HEALTH)["n_left_out"]) == (1, 1)
    nothing = domain_flows(lose(study, list(range(15))))
    assert nothing["n_entries"].sum() == 0
    assert "no entry is complete in both arms" in cell(nothing, HEALTH, WORK)["remark"]


def test_echoes_and_several_generations(study):
    by_echo = labelled(frames(echoed(FLAT, [0.5] * 15), echoed(FIXED, [0.2] * 15, structure="fixed")))
    row = cell(domain_flows(by_echo), HEALTH, WORK)
    assert row["outcome"] == "echo" and row["mean_score_difference"] == pytest.approx(-0.3)
    assert math.isnan(row["mean_score_low"])  # no variation: a width of zero would look certain
    several = frames(rows({"e0": [1, 5, 1]}), rows({"e0": [1, 1, 1]}, structure="fixed"))
    assert cell(domain_flows(labelled(several)), HEALTH, WORK)["rate_baseline"] == 1


def test_missing_and_own_labels_are_rows_too():
    own = [("pets", "garden")] * 14 + [("pets", None)]
    table = domain_flows(labelled(frames(arm(FLAT), arm(FIXED, structure="fixed")), own))
    assert list(dict.fromkeys(table["memory_domain"])) == ["garden", "pets", "(none)", ALL]
    assert cell(table, "pets", "(none)")["n_entries"] == 1


def test_refusals(study):
    with pytest.raises(InputError, match="no row has a memory_domain"):
        domain_flows(study.assign(memory_domain=None, query_domain=""))
    with pytest.raises(InputError, match="memory_domain"):
        domain_flows(study.drop(columns="memory_domain"))
    mixed = study.copy()
    mixed.loc[0, "query_domain"] = HEALTH
    with pytest.raises(InputError, match="differs between the rows of 1 entries"):
        domain_flows(mixed)
    with pytest.raises(InputError, match="share their key"):
        domain_flows(frames(study, study))
    with pytest.raises(InputError, match="baseline must be one of"):
        domain_flows(study, baseline="tree")
    assert not len(domain_flows(empty_results()))
    assert not len(domain_flows(study[study["structure"] == "flat"]))
    with pytest.raises(InputError, match="no entry has"):
        flow_counts([Entry("a", (), "q")])


def test_a_failure_type_without_labels_is_left_out(study):
    unlabelled = arm([1, 0], failure_type="sycophancy").assign(memory_domain=None, query_domain=None)
    both = frames(study, unlabelled, unlabelled.assign(structure="fixed"))
    assert set(domain_flows(both)["failure_type"]) == {"cross_domain"}


def test_counts_of_the_benchmark():
    entries = load_entries("persistbench", ["cross_domain"])
    counts, grid = flow_counts(entries), flow_grid(flow_counts(entries))
    assert counts["n_entries"].max() == 200 and grid.loc["all", "all"] == 200
    by_hand = pd.crosstab([e.memory_domain for e in entries], [e.query_domain for e in entries])
    inner = counts[(counts["memory_domain"] != ALL) & (counts["query_domain"] != ALL)]
    for row in inner.itertuples():
        assert row.n_entries == by_hand.at[row.memory_domain, row.query_domain]
    assert grid.to_numpy()[:-1, :-1].sum() == 200 and (np.diag(grid.to_numpy())[:-1] == 0).all()
    with pytest.raises(InputError, match="no column 'rate_arm'"):
        flow_grid(counts, "rate_arm")
    with pytest.raises(InputError, match="several arms"):
        flow_grid(pd.concat([counts, counts]))


def test_the_reading_follows_from_the_numbers(study, flows, capsys):
    flow_reading(flows, flow_counts(load_entries("persistbench", ["cross_domain"])))
    said = capsys.readouterr().out
    assert "All 200 entries lie in 62 of 81 cells. 2 cells and 18 of 18 margins have 10 or more" in said
    assert "m, cross_domain, fixed: 15 entries of K = 1 in 3 cells, at most 12 in one." in said
    assert "26.7 % against 66.7 % of the baseline" in said and "recipient" in said
    assert "cells with 10 entries or more: 1; intervals of the rate: 1, of which 0 exclude 0" in said
    assert "echo" not in said and "simulated" not in said
    flow_reading(flows.assign(model="simulated/m"))
    assert "simulated" in capsys.readouterr().out.split("\n")[0]
    flow_reading(domain_flows(study.iloc[:0]))
    assert "No arm has a baseline" in capsys.readouterr().out
    flow_reading(domain_flows(labelled(frames(arm([1, 0]), arm([0, 0], structure="fixed")))))
    assert "no cell has 10 entries" in capsys.readouterr().out


# --- figures ---------------------------------------------------------------------------------------------------------


def printed(axes):
    """(column, row) → text of a grid."""
    return {(int(t.get_position()[0]), int(t.get_position()[1])): t.get_text() for t in axes.texts}


@pytest.mark.parametrize(("value", "width"), [("rate", "page"), ("mean_score", "column")])
def test_the_figure_prints_the_table_and_colours_only_ten_or_more(flows, value, width):
    table = flows
    panels = figures.domain_flows(table, value, width)
    assert len(panels) == 4
    n, flat, fixed, apart = map(printed, panels)
    assert n[3, 0] == "12" and n[0, 3] == "2" and n[9, 9] == "15" and (0, 0) not in n
    assert (flat[3, 0], fixed[3, 0]) == (("67", "25") if value == "rate" else ("3.67", "2.00"))
    assert apart[3, 0] == ("−42" if value == "rate" else "−1.67") and (0, 3) not in apart
    grey = matplotlib_grey(panels[1])
    assert (0, 3) in grey and (3, 7) in grey and (3, 0) not in grey
    figure = panels[0].figure
    assert "15 entries in 3 of 81 cells, at most 12 in one; cells with 10 or more: 1" in figure.alt_text
    assert len(figure.drawn_rows) == 100


def matplotlib_grey(axes):
    found = set()
    for patch in axes.artists + axes.patches:
        if patch.get_facecolor()[:3] == pytest.approx((230 / 255,) * 3, abs=0.01):
            found.add((round(patch.get_x() + 0.5), round(patch.get_y() + 0.5)))
    return found


def test_the_figure_of_counts():
    counts = flow_counts(load_entries("persistbench", ["cross_domain"]))
    axes = figures.flow_counts(counts)
    grid = flow_grid(counts).to_numpy()
    assert printed(axes) == {(x, y): str(grid[y, x]) for y in range(10) for x in range(10) if grid[y, x]}
    assert {(x, y) for y in range(10) for x in range(10) if 0 < grid[y, x] < 10} == matplotlib_grey(axes)
    assert "200 entries in 62 of 81 cells, at most 17 in one; cells with 10 or more: 2" in axes.figure.alt_text


def test_figures_refuse_what_they_cannot_draw(flows):
    table = flows
    with pytest.raises(InputError, match="value must be one of"):
        figures.domain_flows(table, "rates")
    with pytest.raises(InputError, match="2 rows for"):
        figures.domain_flows(pd.concat([table, table.assign(arm="tree")]))
    with pytest.raises(InputError, match="no rows"):
        figures.domain_flows(table.iloc[:0])
    with pytest.raises(InputError, match="lacks"):
        figures.domain_flows(table.drop(columns="rate_arm"))
