"""Every figure at both widths, with hostile tables: names in any script, 1 and 18 models, missing cells, zeros."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
import zlib
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.legend import Legend
from matplotlib.text import Text

from structmem import figures, glyphs, house

STRANGE = ["健康 🩺", "здоровье", "$x$_{1}^", "a\u200bb\tc\u0007", "\u202eabc"]
LONG = [f"structure number {k} with quite a long name of its own, sixty characters"[:60] for k in range(3)]
STRUCTURES = ["flat", "fixed", "dynamic", "tree"]
EIGHTEEN = [f"provider-{k:02d}/a-model-{k}" for k in range(18)]


class Case:
    """Names and values that a kind of figure is drawn from."""

    def __init__(self, models, arms, rate, defences=("standard", "rubric_informed"), missing=False):
        self.models, self.arms, self.defences, self.missing = models, arms, defences, missing
        self.rate = rate

    def rates(self, kind="cross_domain", defences=("standard",)):
        rows = [
            {"model": model, "structure": name, "arm": name, "defence": defence, "failure_type": kind,
             "failure_rate": self.rate, "low": max(self.rate - 0.06, 0), "high": self.rate + 0.07, "n_entries": 90 + y,
             "n_unscored": y, "n_generations": 3, "threshold": 3, "interval": "Wilson"}
            for model in self.models for y, name in enumerate(self.arms) for defence in defences
        ]  # fmt: skip
        table = pd.DataFrame(rows)
        if self.missing:
            table.loc[1, ["failure_rate", "low", "high"]] = np.nan
            table.loc[1, "n_entries"] = 0
        return table

    def both(self):
        return pd.concat([self.rates(kind) for kind in ("cross_domain", "beneficial_memory_usage")], ignore_index=True)

    def differences(self):
        table = self.rates().assign(baseline="flat", outcome="failure", n_pairs=90, estimand="", n_models=1)
        table = table.assign(difference_pp=-100 * table["failure_rate"], low_pp=-20.0, high_pp=1.0)
        pooled = table.drop_duplicates("arm").assign(model="all models", n_models=len(self.models))
        estimands = ("these models, new entries", "new models")
        return pd.concat([table, *(pooled.assign(estimand=name) for name in estimands)], ignore_index=True)

    def published(self, defences=("standard",), kind="cross_domain"):
        named = dict(zip(self.arms, STRUCTURES, strict=False))
        table = self.rates(kind, defences).drop(columns="arm")
        return table[table["structure"].isin(named)].assign(structure=table["structure"].map(named))

    def dominance(self):
        table = self.rates()[["model", "arm"]].assign(baseline="flat").query("not arm.str.startswith('flat')")
        return table.assign(dominates=table["arm"].where(table["arm"] != self.arms[-1], "flat"))

    def scores(self):
        shares = pd.DataFrame({"score": range(1, 6), "share": [1 - self.rate, 0.0, self.rate / 2, self.rate / 2, 0.0]})
        table = self.rates().drop(columns=["failure_rate", "low", "high"]).merge(shares, how="cross")
        return table.assign(share=table["share"].where(table["n_entries"] > 0))

    def curve(self):
        table = self.rates().merge(pd.DataFrame({"k": [1, 2, 3]}), how="cross")
        return table.rename(columns={"failure_rate": "fr_at_k"})

    def power(self):
        sizes = np.arange(20, 201, 20)
        parts = [
            pd.DataFrame({"difference_pp": d, "n_entries": sizes, "power": np.minimum(1, d * sizes / 2000),
                          "discordant_share": 0.3, "detectable_pp": 2000 / sizes, "test": "mcnemar exact"})
            for d in (*range(2, 2 + len(self.models)), 40)
        ]  # fmt: skip
        table = pd.concat(parts, ignore_index=True)
        return table.assign(power=table["power"].where(table["difference_pp"] < 40), target_power=0.8)

    def points(self):
        rows = [(m, "τ", "rag", f"τ 0.{k}") for m in self.models for k in (1, 2, 3)]
        rows += [(m, "", name, "") for m in self.models for name in self.arms]
        table = pd.DataFrame(rows, columns=["model", "curve", "arm", "setting"])
        numbers = {}
        for side, step in (("cross_domain", 0.01), ("beneficial", -0.01)):
            value = np.clip(self.rate + step * np.arange(len(table)) % 0.3, 0, 1)
            numbers |= {f"{side}_rate": value, f"{side}_fitted": value, f"n_{side}": 90}
            numbers |= {f"{side}_low": value - 0.05, f"{side}_high": value + 0.05}
        table = table.assign(structure=table["arm"], outcome="failure", measure="rate", **numbers)
        table.loc[table["setting"] == "τ 0.1", "cross_domain_rate"] = np.nan if self.missing else self.rate
        return table

    def fill(self):
        rows = [(s, d, 1 / len(self.models)) for s in self.arms for d in self.models]
        return pd.DataFrame(rows, columns=["structure", "domain", "share"])

    def tokens(self):
        rows = [(s, r, 9.0) for r in self.models for s in self.arms]
        return pd.DataFrame(rows, columns=["structure", "renderer", "tokens_added"])


CASES = {
    "one model": Case(["a/model"], ["flat", "flat (A/A)", "fixed", "dynamic (embedding)"], 0.4),
    "strange names": Case([STRANGE[0], STRANGE[2], "m" * 70], [STRANGE[1], *STRANGE[3:], *LONG], 0.97, missing=True),
    "18 models at zero": Case(EIGHTEEN, ["flat", "dynamic"], 0.0),
}
DRAWN = {
    "rates": (figures.leakage_by_model, Case.rates),
    "forest": (figures.paired_forest, Case.differences),
    "published": (figures.published_rates, Case.published),
    "sycophancy": (
        lambda table, width: figures.sycophancy_ceiling(table, width),
        lambda case: case.rates("sycophancy", case.defences),
    ),
    "trade-off": (lambda table, width: figures.leakage_vs_beneficial(*table, width=width), None),
    "heat map": (figures.structure_by_defence, lambda case: case.rates(defences=case.defences).drop(index=0)),
    "scores": (figures.score_bars, Case.scores),
    "by k": (figures.failure_by_k, Case.curve),
    "power": (lambda table, width: figures.power_by_entries(table, 120, width), Case.power),
    "matched": (figures.matched_tradeoff, Case.points),
    "fill": (figures.domain_fill, Case.fill),
    "tokens": (figures.tokens_added, Case.tokens),
}


@cache
def drawn(kind, case, width):
    """A figure, laid out, with the table it was drawn from."""
    draw, table = DRAWN[kind]
    case = CASES[case]
    if kind == "trade-off":
        table = case.both()
        axes = figures.leakage_vs_beneficial(table, width, case.dominance())
    else:
        table = table(case)
        axes = draw(table, width=width)
    figure = house.figure_of(axes)
    with house.style(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of numbers for names: tested below
        house.draw_only_known_glyphs(figure)
        figure.get_layout_engine().execute(figure)  # what drawing does first, and half the time
        for legend in figure.legends:
            legend.draw(figure.canvas.get_renderer())  # which places its texts
    return figure, table


def visible_texts(figure):
    unseen = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = [tick for tick in axis.get_major_ticks() if not low <= tick.get_loc() <= high]
            unseen |= {id(tick.label1) for tick in ticks}
    texts = [text for text in figure.findobj(Text) if text.get_text().strip() and id(text) not in unseen]
    return [text for text in texts if text.get_visible()]


@pytest.mark.parametrize("width", ["column", "page"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", DRAWN)
def test_texts_are_inside_the_page_apart_and_legible(kind, case, width):
    figure, _ = drawn(kind, case, width)
    assert figure.get_size_inches()[0] == {"column": 3.25, "page": 6.75}[width]
    texts = visible_texts(figure)
    boxes = np.array([text.get_window_extent().extents for text in texts])
    page = figure.bbox
    inside = (boxes[:, :2] >= -1).all(1) & (boxes[:, 2] <= page.x1 + 1) & (boxes[:, 3] <= page.y1 + 1)
    assert inside.all(), [text.get_text() for text, ok in zip(texts, inside, strict=True) if not ok]
    assert min(text.get_fontsize() for text in texts) >= 6.5
    across = np.minimum.outer(boxes[:, 2], boxes[:, 2]) - np.maximum.outer(boxes[:, 0], boxes[:, 0])
    down = np.minimum.outer(boxes[:, 3], boxes[:, 3]) - np.maximum.outer(boxes[:, 1], boxes[:, 1])
    pairs = np.argwhere(np.triu((across > 1) & (down > 2), 1))
    assert not len(pairs), [(texts[a].get_text(), texts[b].get_text()) for a, b in pairs[:5]]
    for legend in figure.findobj(Legend):
        assert not any(legend.get_window_extent().overlaps(axes.get_window_extent()) for axes in figure.axes)
    known = {ord(char) for char in " \n"} | set(glyphs._characters(house.FONT))
    assert all(ord(char) in known for text in texts for char in text.get_text())


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", DRAWN)
def test_the_alt_text_says_what_is_drawn_and_how_many(kind, case):
    alt = drawn(kind, case, "column")[0].alt_text
    assert alt.endswith((".", "…")) and not re.search(r"\bnan\b", alt) and all(char.isprintable() for char in alt)
    assert re.search(r"\bn = \d|\bn, the number", alt) or kind in ("fill", "tokens")
    assert drawn(kind, case, "page")[0].alt_text == alt


@pytest.mark.parametrize("kind", DRAWN)
def test_saved_files_hold_the_size_the_fonts_and_the_words(kind, tmp_path):
    figure, table = drawn(kind, "one model", "column")
    before = dict(matplotlib.rcParams)
    saved = figures.save(figure, "plain", table, tmp_path)
    assert dict(matplotlib.rcParams) == before and saved.alt == figure.alt_text
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".csv", ".pdf", ".png", ".svg", ".txt"]
    assert (tmp_path / "plain.txt").read_text(encoding="utf-8") == f"{saved.alt}\n"
    pdf = (tmp_path / "plain.pdf").read_bytes()
    streams = [zlib.decompress(s) for s in re.findall(rb"stream\r?\n(x.*?)\r?\nendstream", pdf, re.S) if s[:1] == b"x"]
    assert b"/Type3" not in pdf and not any(b"/Type3" in stream for stream in streams)
    assert b"/CIDFontType2" in pdf and b"/FontFile2" in pdf
    box = [float(number) for number in re.search(rb"/MediaBox \[([\d. ]+)\]", pdf)[1].split()]
    assert box[2] == pytest.approx(3.25 * 72, abs=0.01)
    svg = ElementTree.parse(tmp_path / "plain.svg").getroot()
    assert float(svg.get("width").removesuffix("pt")) == pytest.approx(3.25 * 72, abs=0.01)
    assert saved.alt in "".join(svg.itertext()) and not svg.findall(".//{http://www.w3.org/2000/svg}text")
    from PIL import Image

    with Image.open(tmp_path / "plain.png") as image:
        assert image.width == round(3.25 * 300) and image.info["Description"] == saved.alt


def test_no_name_becomes_boxes_and_files_stay_well_formed(tmp_path, monkeypatch):
    monkeypatch.setattr(glyphs, "_family_with", lambda characters: None)  # as if no other font were installed
    table = CASES["strange names"].rates()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        saved = figures.save(figures.rates_by_model(table), "strange", table, tmp_path)
    said = [str(warning.message) for warning in caught]
    assert len(said) == 1 and "健康" in said[0] and "#1 is 健康 🩺" in saved.alt
    assert (tmp_path / "strange.csv").read_text(encoding="utf-8").count("健康") > 0  # the table keeps the name
    ElementTree.parse(tmp_path / "strange.svg")


def test_many_figures_without_a_display_leave_none_open(tmp_path):
    table = CASES["one model"].tokens()
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
table = pd.DataFrame({table.to_dict("list")})
for _ in range(21):  # matplotlib warns of the 21st that stays open
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
