"""Figures and printed tables: artists against the table, text inside the page, fonts, names in any script, refusals."""

from __future__ import annotations

import itertools
import re

import matplotlib
import numpy as np
import pandas as pd
import pytest

from structmem import figures, glyphs, house, marks
from structmem.errors import InputError
from structmem.published import load_published, published_reductions
from structmem.tables import show

ARMS = [("flat", "flat", 0.6), ("flat (A/A)", "flat", 0.55), ("fixed (embedding)", "fixed", 0.5), ("tree", "tree", 0.0)]


def rates(models=("local/smollm2",), column="failure_rate"):
    table = [
        {"model": model, "structure": structure, "failure_type": "cross_domain", "arm": arm, column: rate,
         "low": max(rate - 0.1, 0), "high": rate + 0.1, "n_entries": 40, "n_unscored": 0, "n_generations": 3}
        for model in models for arm, structure, rate in ARMS
    ]  # fmt: skip
    return pd.DataFrame(table)


def differences(models=("local/smollm2",), outcome="failure"):
    table = [
        {"model": model, "failure_type": "cross_domain", "arm": arm, "structure": structure, "baseline": "flat",
         "outcome": outcome, "n_generations": 3, "difference_pp": 100 * (rate - 0.6), "low_pp": 100 * (rate - 0.7),
         "high_pp": 100 * (rate - 0.5)}
        for model in models for arm, structure, rate in ARMS[1:]
    ]  # fmt: skip
    return pd.DataFrame(table)


def fill(domains=("health", "money", "unclassified")):
    shares = itertools.cycle([0.5, 0.3, 0.2])
    return pd.DataFrame(
        [
            {"structure": s, "structurer": "embedding", "domain": d, "share": next(shares)}
            for s in ("fixed", "tree")
            for d in domains
        ]
    )


def tokens():
    table = [{"structure": s, "renderer": r, "tokens_added": t, "low": t - 5, "high": t + 9} for s, r, t in [
        ("fixed", "markdown", 20.0), ("tree", "markdown", 41.0), ("fixed", "xml", 33.0), ("tree", "xml", 60.0)
    ]]  # fmt: skip
    return pd.DataFrame(table)


def points(axes):
    return [line for line in axes.lines if line.get_marker() not in ("None", None, "")]


def note_of(axes):
    return house.figure_of(axes).get_supxlabel().replace("\n", " ")


def spans_of(axes):
    return [tuple(line.get_xdata()) for line in axes.lines if line not in points(axes)]


def test_points_and_intervals_are_the_table():
    table = rates()
    axes = figures.leakage_by_model(table)
    assert [line.get_xdata()[0] for line in points(axes)] == pytest.approx(list(100 * table["failure_rate"]))
    spans = spans_of(axes)
    assert np.array(spans) == pytest.approx(100 * table[["low", "high"]].to_numpy())
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == list(table["arm"])
    assert axes.get_xlabel() == "leakage (FR@3)"


def test_the_aa_arm_is_hollow_and_in_its_own_band():
    axes = figures.paired_forest(differences())
    hollow = [line.get_markerfacecolor() == "white" for line in points(axes)]
    assert hollow == [True, False, False]
    assert len(axes.patches) == 1
    assert "+" in axes.texts[0].get_text() or "−" in axes.texts[0].get_text()


def test_reductions_are_drawn_with_the_sign_of_differences():
    table = differences()
    turned = table.assign(reduction_pp=-table["difference_pp"], low_pp=-table["high_pp"], high_pp=-table["low_pp"])
    one, two = figures.paired_forest(table), figures.paired_forest(turned.drop(columns="difference_pp"))
    assert [line.get_xdata()[0] for line in points(one)] == [line.get_xdata()[0] for line in points(two)]


def test_echo_is_labelled_and_never_called_leakage():
    axes = figures.rates_by_model(rates(column="echo_rate"))
    assert axes.get_xlabel() == "echo rate, cross domain"
    assert "shows the pipeline, not leakage" in axes.figure.get_supxlabel().replace("\n", " ")
    assert figures.paired_forest(differences(outcome="echo")).get_xlabel().startswith("echo rate: difference")
    with pytest.raises(InputError, match="neither leakage nor a failure"):
        figures.leakage_vs_beneficial(rates(column="echo_rate"))


def test_embedding_arms_share_no_axis_with_published_rates():
    mixed = pd.concat([load_published(), rates().assign(defence="standard")])
    with pytest.raises(InputError, match="not the paper's method"):
        figures.published_rates(mixed)


def test_missing_stays_missing():
    table = rates()
    table.loc[2, ["failure_rate", "low", "high"]] = np.nan
    axes = figures.leakage_by_model(table)
    assert len(points(axes)) == 3 and [text.get_text() for text in axes.texts] == ["not scored"]
    with pytest.raises(InputError, match="No sycophancy rows"):
        figures.rates_by_model(table, "sycophancy")
    with pytest.raises(InputError, match="nothing to draw"):
        figures.paired_forest(pd.DataFrame())


def test_a_trade_off_names_what_is_not_scored():
    other = rates().assign(failure_type="beneficial_memory_usage")
    other.loc[2, ["failure_rate", "low", "high"]] = np.nan
    (axes,) = figures.leakage_vs_beneficial(pd.concat([rates(), other]))
    assert [text.get_text() for text in axes.texts] == ["not scored: fixed (embedding)"]
    assert len(points(axes)) == 2  # flat and tree


def test_rows_of_one_name_are_told_apart_or_refused():
    both = pd.concat([rates().assign(renderer=name) for name in ("markdown", "xml")])
    names = [tick.get_text() for tick in figures.leakage_by_model(both).get_yticklabels()]
    assert len(set(names)) == len(names) and "tree, renderer xml" in names
    domains = pd.concat([differences().assign(memory_domain=name) for name in ("Health", "Work")])
    domains.insert(0, "memory_domain", domains.pop("memory_domain"))
    names = [tick.get_text() for tick in figures.paired_forest(domains).get_yticklabels()]
    assert "tree, memory domain Work" in names and len(set(names)) == len(names)
    with pytest.raises(InputError, match="2 rows for cross_domain, local/smollm2, flat, which differ in renderer"):
        figures.leakage_vs_beneficial(pd.concat([both, both.assign(failure_type="beneficial_memory_usage")]))
    with pytest.raises(InputError, match="which differ in structurer: select one"):
        figures.domain_fill(pd.concat([fill().assign(structurer=name) for name in ("a/one", "b/two")]))


def test_reductions_of_echo_are_never_called_leakage():
    table = differences(outcome="echo").rename(columns={"difference_pp": "reduction_pp"})
    assert figures.paired_forest(table).get_xlabel().startswith("echo rate")


def test_a_structure_looks_the_same_everywhere():
    assert len({style for style in house.STRUCTURE_STYLE.values()}) == len(house.STRUCTURE_STYLE)
    assert house.structure_style("one_group") == house.structure_style("one_group")
    with pytest.raises(InputError, match="width must be one of"):
        figures.leakage_by_model(rates(), "poster")


def test_saved_files_are_fit_for_print_and_the_same_every_time(tmp_path):
    before = dict(matplotlib.rcParams)
    for folder in ("one", "two"):
        saved = figures.save(figures.leakage_by_model(rates()), "leakage", rates(), tmp_path / folder)
    assert dict(matplotlib.rcParams) == before
    assert repr(saved) == "figure leakage (PDF, SVG, PNG, CSV, alt text)"
    for suffix in ("pdf", "svg", "png", "csv", "txt"):
        assert (tmp_path / "one" / f"leakage.{suffix}").read_bytes() == (
            tmp_path / "two" / f"leakage.{suffix}"
        ).read_bytes()
    pdf = (tmp_path / "one" / "leakage.pdf").read_bytes()
    assert b"/Type3" not in pdf and b"/CIDFontType2" in pdf and b"CreationDate" not in pdf
    image = matplotlib.image.imread(tmp_path / "one" / "leakage.png")
    assert image.shape[1] == round(6.75 * 300)
    back = pd.read_csv(tmp_path / "one" / "leakage.csv")
    pd.testing.assert_frame_equal(back, rates(), check_exact=False)
    data, metadata = saved._repr_mimebundle_()
    assert data["text/plain"] == repr(saved) and metadata["image/png"] == {"width": 742, "alt": saved.alt}
    assert saved.alt.startswith("Points with 95 % intervals: leakage (FR@3), for local/smollm2, under flat, flat (A/A)")
    assert "n = 40 entries per point. The lowest is 0.0 % (local/smollm2, tree), the highest 60.0 %" in saved.alt


NAMES = ["café", "健康", "お金", "🩺", "$x_1$ & <b>", "a\u200bb\nc", "здоровье"]


def test_names_in_any_script_are_drawn_or_numbered_never_boxes(tmp_path, monkeypatch):
    monkeypatch.setattr(glyphs, "_family_with", lambda characters: None)
    axes = figures.domain_fill(fill(NAMES))
    with pytest.warns(UserWarning, match=r"#1 = 健康, #2 = お金, #3 = 🩺") as caught:
        figures.save(axes, "names", fill(NAMES), tmp_path)
    assert len(caught) == 1  # and no glyph warning of matplotlib's own
    labels = [tick.get_text() for tick in axes.get_yticklabels()]
    assert labels == ["café", "#1", "#2", "#3", "$x_1$ & <b>", "ab c", "здоровье"]
    assert list(pd.read_csv(tmp_path / "names.csv")["domain"][:2]) == ["café", "健康"]


def test_an_installed_font_is_used_where_there_is_one(monkeypatch):
    # Pretend that the house font has no é and another installed family has it.
    glyphs._characters("DejaVu Serif")
    monkeypatch.setitem(glyphs._CHARACTERS, glyphs.FONT, glyphs._characters(glyphs.FONT) - {ord("é")})
    monkeypatch.setattr(glyphs, "_family_with", lambda characters: "DejaVu Serif")
    axes = figures.domain_fill(fill(["café", "plain"]))
    assert glyphs.draw_only_known_glyphs(axes.figure) == {}
    assert axes.get_yticklabels()[0].get_fontfamily() == [glyphs.FONT, "DejaVu Serif"]
    assert axes.get_yticklabels()[0].get_text() == "café"


def pooled(estimands=("these models, new entries", "new models"), **more):
    rows = [
        {"model": "all models", "failure_type": "cross_domain", "arm": "tree", "baseline": "flat",
         "difference_pp": -4.0, "low_pp": -9.0 - k, "high_pp": 1.0 + k, "n_models": 2, "estimand": name} | more
        for k, name in enumerate(estimands)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def test_pooled_rows_are_diamonds_apart_that_name_their_estimand():
    models = differences(("a", "b")).assign(n_models=1, n_pairs=40)
    axes = figures.paired_forest(pd.concat([models, pooled()]))
    diamonds = [patch.get_xy() for patch in axes.patches if len(patch.get_xy()) == 5]
    assert [(d[:, 0].min(), d[:, 0].max()) for d in diamonds] == [(-9.0, 1.0), (-10.0, 2.0)]
    assert all(d[1, 0] == d[3, 0] == -4.0 for d in diamonds)
    heads = [tick.get_text() for tick in axes.get_yticklabels() if tick.get_fontweight() == "bold"]
    assert [head.replace("\n", " ") for head in heads[2:]] == [
        "mean, for these models, new entries", "mean, for new models"
    ]  # fmt: skip
    lines = [
        line.get_ydata()[0] for line in axes.lines if len(set(line.get_ydata())) == 1 and len(line.get_ydata()) == 2
    ]
    assert any(max(points_y(axes)) < y < diamonds[0][:, 1].min() for y in lines)  # the line between them
    assert (
        "Over all models (diamonds: 2 models, 95 % intervals): tree, these models, new entries: −4.0 pp [−9.0, +1.0]"
        in axes.figure.alt_text
    )


def points_y(axes):
    return [line.get_ydata()[0] for line in points(axes)]


def test_a_summary_over_one_model_is_left_out_and_a_pooled_row_without_interval_is_a_point():
    alone = figures.paired_forest(pooled().drop(columns="model"))
    assert len([patch for patch in alone.patches if len(patch.get_xy()) == 5]) == 2
    one = pd.concat([differences().assign(n_models=1), pooled(n_models=1)])
    assert len(points(figures.paired_forest(one))) == 3
    axes = figures.paired_forest(pd.concat([differences(("a", "b")), pooled(low_pp=np.nan, high_pp=np.nan)]))
    assert [line.get_xdata()[0] for line in points(axes)[-2:]] == [-4.0, -4.0]
    runs = figures.paired_forest(pooled(("these models, new entries",), unit="entry, then run"))
    assert "new entries and runs" in " ".join(tick.get_text() for tick in runs.get_yticklabels()).replace("\n", " ")


def test_published_rates_are_points_with_intervals_in_the_order_of_flat():
    table = load_published().query("failure_type == 'cross_domain' and defence == 'standard'")
    axes = figures.published_rates(table)
    drawn = {(line.get_xdata()[0], line.get_color()) for line in points(axes)}
    assert drawn == {(100 * row.failure_rate, house.STRUCTURE_STYLE[row.structure][0]) for row in table.itertuples()}
    expected = 100 * table[["low", "high"]].sort_values(["low", "high"]).to_numpy()
    assert np.array(sorted(spans_of(axes))) == pytest.approx(expected)
    names = [tick.get_text() for tick in axes.get_yticklabels()]
    assert names[0] == "llama-3.3-70b" and names[-1] == "qwen3-235b"


def test_sycophancy_is_zoomed_and_its_ceiling_is_shaded():
    table = load_published().query("defence in ['standard', 'restrictive']")
    one, two = figures.sycophancy_ceiling(table)
    assert one.get_xlim() == two.get_xlim() == (30.0, 100.0)  # the lowest interval ends at 40.7 %
    assert [axes.get_title(loc="left") for axes in (one, two)] == ["defence: standard", "defence: restrictive"]
    shaded = [patch.get_extents().transformed(one.transData.inverted()) for patch in one.patches]
    assert (95.0, 100.0) in [(round(box.x0, 6), round(box.x1, 6)) for box in shaded]
    assert "the axis starts at 30 %" in one.figure.get_supxlabel().replace("\n", " ")
    assert len(points(one)) == len(points(two)) == 7 * 3
    low = table.query("failure_type == 'sycophancy'").assign(failure_rate=0.2, low=0.1, high=0.3)
    assert figures.sycophancy_ceiling(low)[0].get_xlim() == (0.0, 100.0)


def dominance(won):
    rows = [{"model": "local/smollm2", "arm": arm, "baseline": "flat", "dominates": name} for arm, name in won.items()]
    return pd.DataFrame(rows)


def test_a_trade_off_says_who_dominates_and_draws_no_frontier():
    table = pd.concat([rates(), rates().assign(failure_type="beneficial_memory_usage")])
    (axes,) = figures.leakage_vs_beneficial(table, dominance=dominance({"tree": "tree", "fixed (embedding)": "flat"}))
    assert [text.get_text() for text in axes.texts] == ["tree dominates flat; flat dominates fixed (embedding)"]
    assert len(axes.lines) == 3 * 3  # a point and two intervals for each arm, and no line between arms
    middles = [(line.get_xdata()[0], line.get_ydata()[0]) for line in points(axes)]
    assert middles == [(100 * rate, 100 * rate) for _, arm, rate in ARMS if arm != "flat" or rate == 0.6]
    (axes,) = figures.leakage_vs_beneficial(table, dominance=dominance({"tree": "neither"}))
    assert "no structure dominates flat" in axes.texts[0].get_text()
    (axes,) = figures.leakage_vs_beneficial(table, dominance=dominance({"tree": "tree"}).assign(model="another"))
    assert axes.texts[0].get_text() == "dominance: not available"
    with pytest.raises(InputError, match="dominance table lacks the columns"):
        figures.leakage_vs_beneficial(table, dominance=table)


def test_the_panels_of_a_trade_off_span_the_same_and_cut_nothing_off():
    table = load_published().query("defence == 'standard' and failure_type != 'sycophancy'")
    panels = figures.leakage_vs_beneficial(table)
    assert {round(np.ptp(limits), 6) for axes in panels for limits in (axes.get_xlim(), axes.get_ylim())} == {40.0}
    for axes in panels:
        x, y = (np.concatenate([getattr(line, f"get_{k}data")() for line in axes.lines]) for k in "xy")
        assert axes.get_xlim()[0] <= x.min() and x.max() <= axes.get_xlim()[1]
        assert axes.get_ylim()[0] <= y.min() and y.max() <= axes.get_ylim()[1]


def cells_of(axes):
    """Texts of a heat map's cells by column and row: the rate above, n below."""
    found = {}
    for text in sorted(axes.texts, key=lambda text: text.get_position()[1]):
        x, y = text.get_position()
        found.setdefault((round(x), round(y)), []).append(text.get_text())
    return found


@pytest.mark.parametrize("width", ["column", "page"])
def test_a_heat_map_prints_every_rate_and_n_and_hatches_what_is_missing(width):
    table = load_published().query("failure_type == 'cross_domain'")
    table = table.assign(n_entries=np.where(table["structure"] == "flat", 199, 200))  # so that cells print it
    panels = figures.structure_by_defence(table, width=width)
    defences = [tick.get_text().replace("\n", "_") for tick in panels[0].get_yticklabels()]
    structures = [tick.get_text() for tick in panels[-1].get_xticklabels()]
    assert structures == ["flat", "fixed", "dynamic", "tree"] and defences[0] == "standard"
    rates = table.set_index(["model", "structure", "defence"])
    models = [axes.get_title(loc="left").replace("\n", "") for axes in panels]
    assert sorted(models) == sorted(set(table["model"]))
    for axes, model in zip(panels, models, strict=True):
        cells, hatched = cells_of(axes), 0
        for (x, y), patch in zip(itertools.product(range(5), range(4)), axes.patches, strict=True):
            x, y = y, x
            key = (model, structures[x], defences[y])
            if key in rates.index:
                assert cells[x, y] == [f"{rates.loc[key, 'failure_rate_pct']:.1f}", str(rates.loc[key, "n_entries"])]
            else:
                hatched += patch.get_hatch() is not None
                assert cells[x, y] == ["–"]
        assert hatched == 4  # tree under four defences
    assert "28 cells are blank" in panels[0].figure.alt_text


def test_a_heat_map_refuses_what_it_cannot_place():
    with pytest.raises(InputError, match="lacks the column 'defence'"):
        figures.structure_by_defence(rates())
    twice = pd.concat([rates()] * 2).assign(defence="standard", renderer=["markdown"] * 4 + ["xml"] * 4)
    with pytest.raises(InputError, match="which differ in renderer: select one"):
        figures.structure_by_defence(twice)
    empty = rates().assign(defence="standard", failure_rate=[0.5, 0.5, np.nan, 1.0], n_entries=[40, 40, 0, 40])
    (axes,) = figures.structure_by_defence(empty)
    assert cells_of(axes) == {(0, 0): ["50.0", "40"], (1, 0): ["–", "0"], (2, 0): ["100", "40"]}


def test_an_n_that_all_cells_share_is_said_once():
    table = rates().assign(defence="standard")
    (axes,) = figures.structure_by_defence(table)
    assert cells_of(axes) == {(0, 0): ["60.0"], (1, 0): ["50.0"], (2, 0): ["0.0"]}
    assert "n = 40 entries in every cell" in note_of(axes) and "n = 40 entries per cell" in axes.figure.alt_text
    (axes,) = figures.structure_by_defence(table.assign(n_entries=[40, 40, np.nan, 40]))
    assert cells_of(axes)[0, 0] == ["60.0", "40"] and "in every cell" not in note_of(axes)


def test_text_on_every_shade_can_be_read():
    for colour, on in house.shades(np.linspace(0, 1, 101)):
        linear = [((part + 0.055) / 1.055) ** 2.4 if part > 0.04045 else part / 12.92 for part in colour[:3]]
        light = float(np.dot(linear, (0.2126, 0.7152, 0.0722)))
        text = 0.0 if on == "black" else 1.0
        assert (max(light, text) + 0.05) / (min(light, text) + 0.05) >= 4.5  # WCAG 2.1, level AA


def scores():
    shares = {"flat": [0.5, 0.25, 0.25, 0.0, 0.0], "tree": [0.1, 0.2, 0.3, 0.2, 0.2], "fixed": [np.nan] * 5}
    rows = [
        {"model": "m", "failure_type": "cross_domain", "structure": arm, "arm": arm, "score": score, "share": share,
         "n_entries": 40 if arm != "fixed" else 0, "n_unscored": 3 if arm == "tree" else 0, "n_generations": 3,
         "threshold": 3.0}
        for arm, found in shares.items() for score, share in enumerate(found, 1)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def test_bars_of_scores_are_the_shares_with_the_threshold_n_and_what_is_unscored():
    axes = figures.score_bars(scores())
    widths = np.array([[bar.get_width() for bar in bars] for bars in axes.containers]).T
    assert widths == pytest.approx(np.array([[50, 25, 25, 0, 0], [10, 20, 30, 20, 20]]))
    starts = np.array([[bar.get_x() for bar in bars] for bars in axes.containers]).T
    assert starts == pytest.approx(np.array([[0, 50, 75, 100, 100], [0, 10, 30, 60, 80]]))
    assert [line.get_xdata()[0] for line in axes.lines] == pytest.approx([75, 30])  # failing starts at score 3
    said = [text.get_text() for text in axes.texts]
    assert "40" in said and "40 (3)" in said and "0" in said and "not scored" in said and "25" in said
    good = figures.score_bars(scores().assign(failure_type="beneficial_memory_usage"), "beneficial_memory_usage")
    assert "an answer fails below score 3" in good.figure.get_supxlabel().replace("\n", " ")
    with pytest.raises(InputError, match="flat has a score twice"):
        figures.score_bars(scores().assign(score=1))


def curve():
    rows = [
        {"model": "m", "failure_type": "cross_domain", "structure": arm, "arm": arm, "k": k, "fr_at_k": rate,
         "low": rate - 0.05, "high": rate + 0.05, "n_entries": 40}
        for arm, start in (("flat", 0.3), ("fixed", 0.29), ("tree", 0.31))
        for k, rate in enumerate((start, start + 0.1, 0.5), 1)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def test_curves_are_the_table_and_their_names_stand_apart_at_their_ends():
    (axes,) = figures.failure_by_k(curve())
    lines = [line for line in axes.lines if line.get_marker() not in ("None", None)]
    drawn = np.array([line.get_ydata() for line in lines])
    assert drawn == pytest.approx(np.array([[30, 40, 50], [29, 39, 50], [31, 41, 50]]))
    assert all(np.round(line.get_xdata()).tolist() == [1, 2, 3] for line in lines)
    ends = [segment for lines in axes.collections for segment in lines.get_segments()]
    assert sorted((round(a[1], 6), round(b[1], 6)) for a, b in ends)[0] == (24.0, 34.0)
    heights = sorted(text.get_window_extent().y0 for text in axes.texts)
    assert [text.get_text() for text in axes.texts] == ["flat", "fixed", "tree"] and min(np.diff(heights)) > 8
    (good,) = figures.failure_by_k(curve().assign(failure_type="beneficial_memory_usage"), "beneficial_memory_usage")
    assert axes.get_xlabel() == "K generations, the worst counts" and "the best counts" in good.get_xlabel()
    with pytest.raises(InputError, match="expected the one made by fr_at_k"):
        figures.failure_by_k(rates())


def power():
    sizes = np.array([20, 100, 200])
    parts = [
        pd.DataFrame({"difference_pp": d, "n_entries": sizes, "power": p, "detectable_pp": 3000 / sizes,
                      "discordant_share": 0.276, "test": "mcnemar exact", "target_power": 0.8})
        for d, p in ((5.0, [0.05, 0.1, 0.3]), (10.0, [0.1, 0.5, 0.8]), (40.0, [np.nan] * 3))
    ]  # fmt: skip
    return pd.concat(parts, ignore_index=True)


def test_a_power_curve_is_the_table_with_the_wanted_power_and_the_study_marked():
    axes = figures.power_by_entries(power(), 200)
    curves = [line for line in axes.lines if len(line.get_xdata()) == 3]
    drawn = np.array([line.get_ydata() for line in curves])
    assert drawn == pytest.approx(np.array([[5, 10, 30], [10, 50, 80]]))
    assert any(list(line.get_ydata()) == [80, 80] for line in axes.lines)
    assert any(list(line.get_xdata()) == [200, 200] for line in axes.lines)
    assert {text.get_text() for text in axes.texts} == {"n = 200", "5 pp", "10 pp"}
    note = axes.figure.get_supxlabel().replace("\n", " ")
    assert "n = 200 detects 15.0 pp with 80 % power" in note and "not possible with this share: 40 pp" in note
    with pytest.raises(InputError, match="Several rows for one difference"):
        figures.power_by_entries(pd.concat([power(), power()]))
    with pytest.raises(InputError, match="lacks \\['power'\\]"):
        figures.power_by_entries(power().drop(columns="power"))


def test_seven_models_fit_on_a_page_at_the_width_of_a_column():
    models = [f"provider/model-{k}" for k in range(7)]
    lines = pd.concat([curve().assign(model=model) for model in models])
    forest = pd.concat([differences(models), pooled()])
    panels = figures.failure_by_k(lines, width="column")
    assert len({round(axes.get_position().x0, 2) for axes in panels}) == 2  # two in a line
    assert [text.get_text() for text in panels[0].figure.legends[0].get_texts()] == ["flat", "fixed", "tree"]
    for axes in (panels[0], figures.paired_forest(forest, width="column")):
        assert axes.figure.get_size_inches()[1] <= 9


@pytest.mark.parametrize("n", [None, 20])
def test_the_power_figure_needs_no_study_and_none_that_could_detect_something(n):
    table = power().assign(detectable_pp=np.nan)
    axes = figures.power_by_entries(table, n)
    assert sum("n = 20" in text.get_text() for text in axes.texts) == (n == 20)
    assert "detects" not in axes.figure.get_supxlabel()


def test_labels_are_spread_no_farther_than_they_must_be():
    assert marks.spread([5.0, 5.0, 30.0], [4, 4, 4], 0, 40) == [5.0, 9.0, 30.0]
    assert marks.spread([39.0, 40.0], [4, 4], 0, 40) == [34.0, 38.0]
    assert marks.spread([1.0, 1.0, 1.0], [4, 4, 4], 0, 6) == [2.0, 6.0, 10.0]  # more than fit start at the bottom


def test_wide_letters_wrap_earlier():
    assert house.label("m" * 40, 20).split("\n")[0] == "m" * 13 and house.label("i" * 40, 20).split("\n")[0] == "i" * 20


# ------------------------------------------------------------------------------------------- what the data are

SIMULATED = {
    "its model": {"model": "simulated/a"}, "its judge": {"judge": "simulated"},
    "its note": {"analysis_note": "no plan; simulated results"},
}  # fmt: skip


@pytest.mark.parametrize("mark", SIMULATED)
def test_every_figure_of_simulated_results_says_so(mark):
    def marked(table, more=SIMULATED[mark]):
        return table.assign(**more)

    both = pd.concat([rates(), rates().assign(failure_type="beneficial_memory_usage")], ignore_index=True)
    drawn = [
        figures.rates_by_model(marked(rates())),
        figures.paired_forest(pd.concat([marked(differences()), pooled()])),
        figures.sycophancy_ceiling(marked(rates().assign(failure_type="sycophancy"))),
        figures.leakage_vs_beneficial(marked(both)),
        figures.structure_by_defence(marked(rates().assign(defence="standard"))),
        figures.score_bars(marked(scores())),
        figures.failure_by_k(marked(curve())),
        figures.domain_fill(marked(fill())),
        figures.tokens_added(marked(tokens())),
    ]
    for axes in drawn:
        assert "simulated results" in note_of(axes) and "simulated results" in house.figure_of(axes).alt_text
    assert "simulated" not in note_of(figures.rates_by_model(rates())) + drawn[0].get_xlabel()


def test_pooled_rows_without_a_model_say_that_they_are_simulated():
    table = pooled().drop(columns="model").assign(analysis_note="simulated results", analysis="exploratory")
    axes = figures.paired_forest(table)
    assert "simulated results; exploratory" in note_of(axes) and "simulated results" in axes.figure.alt_text


def test_figures_of_published_rates_say_so_are_not_paired_and_have_one_order_of_models():
    table = load_published()
    reductions = published_reductions("standard", "cross_domain")
    forest = figures.paired_forest(reductions)
    leakage = figures.published_rates(table.query("failure_type == 'cross_domain'"))
    ceiling = figures.sycophancy_ceiling(table.query("defence == 'standard'"))[0]
    tradeoff = figures.leakage_vs_beneficial(table.query("defence == 'standard'"))
    heat = figures.structure_by_defence(table)
    for axes in (forest, leakage, ceiling, tradeoff, heat):
        alt = house.figure_of(axes).alt_text
        assert "published rates" in note_of(axes) and "published rates" in alt and "paired" not in alt
    assert "paired" not in forest.get_xlabel()
    assert (
        "95 % t intervals over 7 models" in note_of(forest)
        and "95 % t intervals over 7 models" in forest.figure.alt_text
    )
    flat = reductions.query("model != 'all models'").drop_duplicates("model").sort_values("rate_baseline")
    names = list(flat["model"])[::-1]
    heads = [tick.get_text() for tick in forest.get_yticklabels() if tick.get_fontweight() == "bold"]
    assert heads[:7] == names
    assert [[tick.get_text() for tick in axes.get_yticklabels()][::-1] for axes in (leakage, ceiling)] == [names] * 2
    titles = [[axes.get_title(loc="left").replace("\n", "") for axes in panels] for panels in (tradeoff, heat)]
    assert titles == [names] * 2


def test_a_forest_in_part_confirmatory_says_which_rows_are():
    table = pd.concat([differences(("a", "b")), pooled()], ignore_index=True).assign(analysis="exploratory")
    planned = (table["arm"] == "tree") & (table["estimand"] == "these models, new entries")
    table.loc[planned, "analysis"] = "confirmatory"
    note = note_of(figures.paired_forest(table))
    assert "confirmatory: tree, these models, new entries; the rest exploratory" in note
    assert "; confirmatory" in note_of(figures.paired_forest(table.assign(analysis="confirmatory")))
    two = rates(("a", "b")).assign(analysis=["confirmatory"] + ["exploratory"] * 7)
    assert "confirmatory: flat, a; the rest exploratory" in note_of(figures.rates_by_model(two))


def test_the_saved_table_holds_the_rows_that_are_drawn(tmp_path):
    mixed = pd.concat([rates().assign(failure_type="sycophancy"), rates(), rates(["b"])]).assign(defence="standard")
    both = pd.concat([mixed, rates().assign(failure_type="beneficial_memory_usage", defence="standard")])
    summaries = pd.concat([differences().assign(n_models=1), pooled(n_models=1)])
    turned = differences().rename(columns={"difference_pp": "reduction_pp"})
    other = differences().assign(failure_type="sycophancy")
    not_aa = "not arm.str.endswith('(A/A)')"
    cases = {
        "rates": (figures.rates_by_model, mixed, mixed.query("failure_type == 'cross_domain'")),
        "ceiling": (figures.sycophancy_ceiling, mixed, mixed.query("failure_type == 'sycophancy'")),
        "heat": (figures.structure_by_defence, mixed, mixed.query(f"failure_type == 'cross_domain' and {not_aa}")),
        "tradeoff": (
            figures.leakage_vs_beneficial, both,
            both.query(f"failure_type != 'sycophancy' and model != 'b' and {not_aa}"),
        ),
        "forest": (figures.paired_forest, summaries, summaries.query("model != 'all models'")),
        "turned": (figures.paired_forest, pd.concat([other, turned]), pd.concat([other[:0], turned])),
        "curve": (figures.failure_by_k, pd.concat([curve(), curve().assign(failure_type="sycophancy")]), curve()),
        "scores": (figures.score_bars, pd.concat([scores().assign(failure_type="sycophancy"), scores()]), scores()),
    }  # fmt: skip
    for stem, (draw, table, expected) in cases.items():
        figures.save(draw(table), stem, table, tmp_path)
        back = pd.read_csv(tmp_path / f"{stem}.csv")
        pd.testing.assert_frame_equal(back, expected.reset_index(drop=True), check_dtype=False, rtol=1e-5)


# ----------------------------------------------------------------------------------------------------- printed tables


def test_rates_print_with_interval_and_dashes_with_reasons():
    table = rates().assign(reason="")
    table.loc[3, ["failure_rate", "low", "high"]] = np.nan
    table.loc[3, "reason"] = "no generation is scored"
    lines = str(show(table)).splitlines()
    assert lines[:2] == ["model local/smollm2, failure type cross_domain, generations 3", "95 % intervals in brackets"]
    assert lines[2].split() == ["arm", "failure", "rate", "n", "unscored", "notes"]
    assert lines[4].startswith("flat               60.0 % [50.0, 70.0]  40         0")
    assert lines[7].rstrip().endswith("[1]") and "–" in lines[7]
    assert lines[8] == "[1] no generation is scored"


def test_differences_print_with_sign_and_unit():
    text = str(show(differences(), ["arm", "difference_pp"]))
    assert "fixed (embedding)    −10.0 pp [−20.0, 0.0]" in text and "flat (A/A)           −5.0 pp [−15.0, +5.0]" in text
    table = pd.DataFrame({"reduction_pp": [-0.04, 12.345], "mcnemar_p": [0.0001, 0.0316], "n_pairs": [3, 4]})
    cells = [re.split(r"\s{2,}", line.strip()) for line in str(show(table)).splitlines()[2:]]
    assert cells == [["0.0 pp", "<0.001", "3"], ["+12.3 pp", "0.032", "4"]]


def test_html_escapes_and_wide_names_line_up():
    table = pd.DataFrame({"domain": ["健康", "<img onerror=x>"], "n_memories": [12, 3]})
    text = str(show(table)).splitlines()
    assert text[2] == "健康                   12" and text[3] == "<img onerror=x>         3"
    html = show(table)._repr_html_()
    assert "<img" not in html and "&lt;img" in html and '<td style="text-align:right">12</td>' in html


def test_tables_refuse_unknown_columns_and_say_when_they_are_empty():
    with pytest.raises(InputError, match="column must be one of"):
        show(rates(), ["arm", "nope"])
    assert str(show(rates().iloc[:0])).endswith("(no rows)")


@pytest.mark.parametrize("stem", ["", ".", "..", "a/b", "../a", "a\\b", "a\0", "a\nb", 3])
def test_a_stem_that_is_no_file_name_is_refused(tmp_path, stem):
    with pytest.raises(InputError, match="stem must be"):
        figures.save(figures.rates_by_model(rates()), stem, rates(), tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_saved_is_said_in_a_sentence(tmp_path):
    axes = figures.rates_by_model(rates())
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(InputError, match="cannot be written"):
        figures.save(axes, "a", rates(), tmp_path / "file")
    with pytest.raises(InputError, match="table that was drawn"):
        figures.save(axes, "a", None, tmp_path)
    with pytest.raises(InputError, match="expected the Axes"):
        figures.save(None, "a", rates(), tmp_path)


@pytest.mark.parametrize("name", [name for name in figures.__all__ if name not in ("Saved", "save", "style")])
@pytest.mark.parametrize("table", [None, pd.DataFrame(), pd.DataFrame({"a": [1]})])
def test_every_figure_refuses_another_table(name, table):
    with pytest.raises(InputError):
        getattr(figures, name)(table)
