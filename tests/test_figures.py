"""Figures and printed tables: artists against the table, text inside the page, fonts, names in any script, refusals."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import warnings

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text

from structmem import figures, house
from structmem.errors import InputError
from structmem.published import load_published
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


LONG = ("a-provider-with-a-name/and-a-model-whose-name-takes-sixty-characters-v2", "local/smollm2")
DRAWN = {
    "rates": lambda width: figures.leakage_by_model(rates(), width),
    "rates of models": lambda width: figures.leakage_by_model(rates(LONG), width),
    "echo": lambda width: figures.rates_by_model(rates(column="echo_rate"), width=width),
    "forest": lambda width: figures.paired_forest(differences(LONG), width=width),
    "echo forest": lambda width: figures.paired_forest(differences(outcome="echo"), width=width),
    "published": lambda width: figures.published_rates(load_published(), width=width),
    "published sycophancy": lambda width: figures.published_rates(load_published(), "sycophancy", width=width),
    "trade-off": lambda width: figures.leakage_vs_beneficial(load_published().query("defence == 'standard'"), width),
    "fill": lambda width: figures.domain_fill(
        fill([f"a domain with quite a long name, number {i}" for i in range(25)]), width
    ),
    "tokens": lambda width: figures.tokens_added(tokens(), width),
}


def figure_of(drawn):
    return (drawn if hasattr(drawn, "figure") else drawn[0]).figure


def ticks_out_of_view(axes):
    for axis in (axes.xaxis, axes.yaxis):
        low, high = sorted(axis.get_view_interval())
        yield from (tick for tick in axis.get_major_ticks() if not low <= tick.get_loc() <= high)


@pytest.mark.parametrize("width", ["column", "page"])
@pytest.mark.parametrize("name", DRAWN)
def test_every_text_is_inside_the_page_and_apart(name, width):
    figure = figure_of(DRAWN[name](width))
    with house.style():
        figure.canvas.draw()
        page = figure.bbox
        assert figure.get_size_inches()[0] == house.WIDTHS[width]
        boxes = []
        unseen = {id(tick.label1) for axes in figure.axes for tick in ticks_out_of_view(axes)}
        for text in figure.findobj(Text):
            if not text.get_visible() or not text.get_text().strip() or id(text) in unseen:
                continue
            box = text.get_window_extent()
            inside = box.x0 >= page.x0 - 1 and box.x1 <= page.x1 + 1 and box.y0 >= page.y0 - 1 and box.y1 <= page.y1 + 1
            assert inside, f"{text.get_text()!r} leaves the page"
            assert text.get_fontsize() >= 6.5
            boxes.append((text.get_text(), box))
    for (one, a), (two, b) in itertools.combinations(boxes, 2):
        overlap = min(a.x1, b.x1) - max(a.x0, b.x0) > 1 and min(a.y1, b.y1) - max(a.y0, b.y0) > 2
        assert not overlap, f"{one!r} overlaps {two!r}"


def points(axes):
    return [line for line in axes.lines if line.get_marker() not in ("None", None, "")]


def test_points_and_intervals_are_the_table():
    table = rates()
    axes = figures.leakage_by_model(table)
    assert [line.get_xdata()[0] for line in points(axes)] == pytest.approx(list(100 * table["failure_rate"]))
    spans = [tuple(line.get_xdata()) for line in axes.lines if line not in points(axes)]
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
    assert [text.get_text() for text in axes.texts] == ["fixed (embedding): not scored"]
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
    assert repr(saved) == "figure leakage (PDF, PNG, CSV)"
    for suffix in ("pdf", "png", "csv"):
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
    assert data["text/plain"] == repr(saved) and metadata["image/png"]["width"] == 742


NAMES = ["café", "健康", "お金", "🩺", "$x_1$ & <b>", "a\u200bb\nc", "здоровье"]


def test_names_in_any_script_are_drawn_or_numbered_never_boxes(tmp_path, monkeypatch):
    monkeypatch.setattr(house, "_family_with", lambda characters: None)
    axes = figures.domain_fill(fill(NAMES))
    with pytest.warns(UserWarning, match=r"#1 = 健康, #2 = お金, #3 = 🩺") as caught:
        figures.save(axes, "names", fill(NAMES), tmp_path)
    assert len(caught) == 1  # and no glyph warning of matplotlib's own
    labels = [tick.get_text() for tick in axes.get_yticklabels()]
    assert labels == ["café", "#1", "#2", "#3", "$x_1$ & <b>", "ab c", "здоровье"]
    assert list(pd.read_csv(tmp_path / "names.csv")["domain"][:2]) == ["café", "健康"]


def test_an_installed_font_is_used_where_there_is_one(monkeypatch):
    # Pretend that the house font has no é and another installed family has it.
    house._characters("DejaVu Serif")
    monkeypatch.setitem(house._CHARACTERS, house.FONT, house._characters(house.FONT) - {ord("é")})
    monkeypatch.setattr(house, "_family_with", lambda characters: "DejaVu Serif")
    axes = figures.domain_fill(fill(["café", "plain"]))
    assert house.draw_only_known_glyphs(axes.figure) == {}
    assert axes.get_yticklabels()[0].get_fontfamily() == [house.FONT, "DejaVu Serif"]
    assert axes.get_yticklabels()[0].get_text() == "café"


def test_drawing_needs_no_display_and_leaves_pyplot_alone(tmp_path):
    code = (
        "import sys, pandas as pd\nfrom structmem import figures\n"
        f"table = pd.DataFrame({tokens().to_dict('list')})\n"
        f"figures.save(figures.tokens_added(table), 't', table, {str(tmp_path)!r})\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    environment = {
        "MPLBACKEND": "TkAgg",
        "PATH": "",
        "PYTHONPATH": ":".join(filter(None, sys.path)),
        "HOME": str(tmp_path),
        "MPLCONFIGDIR": matplotlib.get_cachedir(),  # its list of fonts takes seconds to make anew
    }
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=60)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        import matplotlib.pyplot as plt

        for _ in range(25):
            house.new_axes("column", 1)
        assert plt.get_fignums() == []


# ----------------------------------------------------------------------------------------------------- printed tables


def test_rates_print_with_interval_and_dashes_with_reasons():
    table = rates().assign(reason="")
    table.loc[3, ["failure_rate", "low", "high"]] = np.nan
    table.loc[3, "reason"] = "no generation is scored"
    lines = str(show(table)).splitlines()
    assert lines[0] == "model local/smollm2, failure type cross_domain, generations 3"
    assert lines[1].split() == ["arm", "failure", "rate", "n", "unscored", "notes"]
    assert lines[3].startswith("flat               60.0 % [50.0, 70.0]  40         0")
    assert lines[6].rstrip().endswith("[1]") and "–" in lines[6]
    assert lines[7] == "[1] no generation is scored"


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
