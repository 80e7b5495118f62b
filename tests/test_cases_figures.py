"""Figures under hostile names and settings: glyphs, fonts in files, legends, and machines without a display."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
import zlib
from pathlib import Path

import matplotlib
import pandas as pd
import pytest
from matplotlib.legend import Legend
from matplotlib.text import Text

from structmem import figures, house

STRANGE = ["健康 🩺", "café", "здоровье", "$x$_{1}^", "a\u200bb\tc", "\u202eabc", "x" * 60]
LONG = [f"structure number {k} with quite a long name of its own, sixty characters"[:60] for k in range(8)]


def rates(models, structures, failure_type="cross_domain"):
    rows = [
        {"model": model, "structure": name, "arm": name, "failure_type": failure_type, "failure_rate": 0.5, "low": 0.4,
         "high": 0.6, "n_entries": 9, "n_unscored": 0, "n_generations": 3}
        for model in models for name in structures
    ]  # fmt: skip
    return pd.DataFrame(rows)


def differences(models, structures):
    table = rates(models, structures).assign(baseline="flat", outcome="failure")
    return table.assign(difference_pp=-10.0, low_pp=-20.0, high_pp=1.0)


def both(models, structures):
    kinds = ("cross_domain", "beneficial_memory_usage")
    return pd.concat([rates(models, structures, kind) for kind in kinds], ignore_index=True)


def published(models, structures):
    named = dict(zip(structures, ("flat", "fixed", "dynamic", "tree"), strict=False))
    table = rates(models, list(named)).assign(defence="standard").drop(columns="arm")
    return table.assign(structure=table["structure"].map(named))


def fill(domains, structures):
    return pd.DataFrame([{"structure": s, "domain": d, "share": 1 / len(domains)} for s in structures for d in domains])


def tokens(renderers, structures):
    rows = [{"structure": s, "renderer": r, "tokens_added": 9.0} for r in renderers for s in structures]
    return pd.DataFrame(rows)


DRAWN = {
    "rates": (figures.leakage_by_model, rates),
    "forest": (figures.paired_forest, differences),
    "published": (figures.published_rates, published),
    "trade-off": (figures.leakage_vs_beneficial, both),
    "fill": (figures.domain_fill, fill),
    "tokens": (figures.tokens_added, tokens),
}


@pytest.fixture(params=DRAWN)
def drawn(request):
    """Draws one kind of figure from names of models (domains, renderers) and of structures."""
    draw, table = DRAWN[request.param]
    return lambda *names, width="page": (draw(table(*names), width=width), table(*names))


def figure_of(axes):
    return (axes if hasattr(axes, "figure") else axes[0]).figure


def test_no_name_becomes_boxes_or_breaks_a_figure(drawn, tmp_path, monkeypatch):
    monkeypatch.setattr(house, "_family_with", lambda characters: None)  # as if no other font were installed
    axes, table = drawn(STRANGE[::2], [STRANGE[0], STRANGE[3], STRANGE[5]])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figures.save(axes, "strange", table, tmp_path)
    said = [str(warning.message) for warning in caught]
    assert not [text for text in said if "Glyph" in text or "missing from" in text]
    texts = [text.get_text() for text in figure_of(axes).findobj(Text)]
    known = {ord(c) for c in " \n"} | set(house._characters(house.FONT))
    assert all(ord(char) in known for text in texts for char in text)
    assert len(said) == 1 and "健康" in said[0]
    assert (tmp_path / "strange.csv").read_text(encoding="utf-8").count("健康") > 0  # the table keeps the name


def test_saved_pages_hold_no_type_3_font_and_settings_stay_as_they_were(drawn, tmp_path):
    before = dict(matplotlib.rcParams)
    axes, table = drawn(["a/model", "b/modèle"], ["flat", "tree"])
    figures.save(axes, "plain", table, tmp_path)
    pdf = (tmp_path / "plain.pdf").read_bytes()
    streams = [zlib.decompress(s) for s in re.findall(rb"stream\r?\n(x.*?)\r?\nendstream", pdf, re.S) if s[:1] == b"x"]
    assert b"/Type3" not in pdf and not any(b"/Type3" in stream for stream in streams)
    assert b"/CIDFontType2" in pdf and b"/FontFile2" in pdf
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize("width", ["column", "page"])
def test_many_long_names_stay_inside_the_page_and_the_legend_off_the_data(drawn, width):
    axes, _ = drawn([f"name {k} " + "of a model or a domain " * 2 for k in range(5)], LONG, width=width)
    figure = figure_of(axes)
    with house.style():
        figure.canvas.draw()
    ticks = [tick for axes in figure.axes for axis in (axes.xaxis, axes.yaxis) for tick in axis.get_major_ticks()]
    unseen = {id(tick.label1) for tick in ticks if not inside_view(tick)}
    texts = [text for text in figure.findobj(Text) if text.get_text().strip() and id(text) not in unseen]
    for part in [*figure.findobj(Legend), *texts]:
        box, page = part.get_window_extent(), figure.bbox
        inside = box.x0 >= -1 and box.y0 >= -1 and box.x1 <= page.x1 + 1 and box.y1 <= page.y1 + 1
        assert inside or not part.get_visible(), getattr(part, "get_text", lambda: "the legend")()
    for legend in figure.findobj(Legend):
        assert not any(legend.get_window_extent().overlaps(axes.get_window_extent()) for axes in figure.axes)


def inside_view(tick):
    view = tick.axes.viewLim
    low, high = sorted(view.intervalx if "XTick" in type(tick).__name__ else view.intervaly)
    return low <= tick.get_loc() <= high


def test_fifty_figures_without_a_display_leave_none_open(tmp_path):
    code = f"""
import sys
import warnings
warnings.simplefilter("error")
import structmem
assert "matplotlib" not in sys.modules
import matplotlib
chosen = matplotlib.rcParams._get("backend")
import pandas as pd
from structmem import figures
table = pd.DataFrame({tokens(["bullets"], ["fixed"]).to_dict("list")})
for _ in range(50):
    axes = figures.tokens_added(table)
figures.save(axes, "t", table, {str(tmp_path)!r})
assert "matplotlib.pyplot" not in sys.modules and matplotlib.rcParams._get("backend") == chosen
"""
    places = {"PYTHONPATH": ":".join(filter(None, [str(Path(house.__file__).parents[1]), *sys.path])), "PATH": ""}
    cache = {
        "HOME": str(tmp_path),
        "MPLCONFIGDIR": matplotlib.get_cachedir(),
    }  # its list of fonts takes seconds to make
    environment = {"MPLBACKEND": "TkAgg", **places, **cache}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "t.pdf").exists()
