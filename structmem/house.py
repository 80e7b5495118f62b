"""House style of the figures: sizes, a colour and marker per structure, and how they are saved and told in words."""

from __future__ import annotations

import re
import sys
import textwrap
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from zlib import crc32

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from .alttext import data_words
from .errors import InputError, choice
from .glyphs import FONT, draw_only_known_glyphs, text_width
from .paths import in_project, writing

WIDTHS = {"column": 3.25, "page": 6.75}  # inches
# Okabe and Ito's colours, told apart also by shape: the same for a structure in every figure.
STRUCTURE_STYLE = {
    "flat": ("#4D4D4D", "o"), "fixed": ("#0072B2", "s"), "dynamic": ("#D55E00", "D"), "tree": ("#009E73", "^"),
    "rag": ("#CC79A7", "v"), "epistemic": ("#8C6BB1", "p"), "gated": ("#E69F00", "P"), "self_check": ("#56B4E9", "X"),
    "empty": ("#7F6A3F", "h"),
}  # fmt: skip
_OTHER_COLOURS, _OTHER_MARKERS = ("#E69F00", "#56B4E9", "#8C6BB1", "#7F6A3F", "#B22222", "#1B7F8C"), "PX<>ph"
GREY = "#8C8C8C"
SHADES = "YlGnBu"  # one order of lightness for every kind of colour vision; dark is much


def shades(values) -> list[tuple]:
    """Colours of values in [0, 1], with the colour of text that is read on each: pairs (colour, text colour)."""
    found = []
    for colour in matplotlib.colormaps[SHADES](values):
        linear = [((part + 0.055) / 1.055) ** 2.4 if part > 0.04045 else part / 12.92 for part in colour[:3]]
        light = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]  # relative luminance (WCAG 2.1)
        found.append((tuple(colour), "black" if (light + 0.05) / 0.05 >= 1.05 / (light + 0.05) else "white"))
    return found


def structure_style(structure: str) -> tuple[str, str]:
    """Colour and marker of a structure; one that is not built in gets a fixed one by its name."""
    one, two = divmod(crc32(structure.encode()), len(_OTHER_COLOURS))
    return STRUCTURE_STYLE.get(structure) or (_OTHER_COLOURS[two], _OTHER_MARKERS[one % len(_OTHER_MARKERS)])


@contextmanager
def style() -> Iterator[None]:
    """The house style; matplotlib's settings are untouched outside."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {
                "font.family": [FONT], "font.size": 7.5, "axes.labelsize": 7.5, "axes.titlesize": 8,
                "legend.fontsize": 7, "xtick.labelsize": 7, "ytick.labelsize": 7, "text.parse_math": False,
                "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False,
                "ytick.major.size": 0, "ytick.major.pad": 5, "axes.linewidth": 0.6,
                "xtick.major.width": 0.6, "xtick.major.size": 2.5, "axes.titlelocation": "left", "axes.axisbelow": True,
                "grid.color": "#E3E3E3", "grid.linewidth": 0.5, "legend.frameon": False, "legend.handletextpad": 0.2,
                "legend.columnspacing": 1.0, "lines.markersize": 4, "pdf.fonttype": 42, "ps.fonttype": 42,
                "savefig.facecolor": "white", "axes.unicode_minus": True, "hatch.linewidth": 0.5,
                # Text in an SVG becomes outlines: the same look where the font is not installed. The PDF keeps text.
                "svg.fonttype": "path", "svg.hashsalt": "structmem",
            }
        )  # fmt: skip
        yield


def page_width(width: str) -> float:
    """Inches of a preset width, or the menu."""
    if width not in WIDTHS:
        raise choice("width", width, WIDTHS)
    return WIDTHS[width]


def new_axes(width: str, height: float, ncols: int = 1, nrows: int = 1, **sharing: bool):
    """Axes on a figure of a preset width; pyplot does not know it, so it needs no display and leaves nothing open."""
    figure = Figure(figsize=(page_width(width), height), layout="constrained")
    FigureCanvasAgg(figure)
    figure.get_layout_engine().set(w_pad=0.04, h_pad=0.04)
    return figure.subplots(nrows, ncols, **sharing)


def label(text: object, width: int = 30) -> str:
    """A name as a figure shows it: one kind of white space, no control characters, wrapped.

    `width` counts characters of usual width; lines of wider ones hold fewer.
    """
    tied = re.sub(r"(\d) (%|pp\b)", "\\1\u00a0\\2", printable(text))  # a number stays with its unit
    lines, widest = textwrap.wrap(tied, width), width
    while widest > 1 and any(map(partial(_too_wide, width), lines)):
        widest -= 1
        lines = textwrap.wrap(tied, widest)
    return "\n".join(lines).replace("\u00a0", " ") or "(blank)"


def _too_wide(width: int, line: str) -> bool:
    """Whether a line takes more room than `width` characters usually do: 0.67 of the font's size each."""
    return len(line) > width / 2 and text_width(line) > 0.67 * max(width, 4)


def printable(text: object) -> str:
    """A text without control characters and with one kind of white space, as files and metadata can hold it."""
    clean = "".join(" " if char.isspace() else char for char in str(text))
    return "".join(c for c in clean if unicodedata.category(c) not in ("Cc", "Cf", "Cs") and c not in "\ufffe\uffff")


def figure_of(drawn) -> Figure:
    """The figure of an Axes, of an array of Axes, or itself."""
    if isinstance(drawn, Figure):
        return drawn
    first = drawn.flat[0] if hasattr(drawn, "flat") and drawn.size else drawn
    if not isinstance(first, Axes):
        raise InputError(f"expected the Axes or Figure that a function of figures made, got {type(drawn).__name__}.")
    return first.figure


def tell(drawn, rows: pd.DataFrame, *sentences: str) -> None:
    """Keep with a figure the rows it shows, and what it shows in plain words, for readers who cannot see it."""
    data = data_words(rows)
    told = [printable(sentence) for sentence in (*sentences, f"The data: {data}" if data else "") if sentence]
    figure_of(drawn).drawn_rows = rows
    figure_of(drawn).alt_text = " ".join(text if text.endswith((".", "…")) else f"{text}." for text in told)


@dataclass(frozen=True)
class Saved:
    """A saved figure: shows its PNG in a notebook, at print size, and prints the same text everywhere."""

    stem: str
    folder: Path
    alt: str

    def __repr__(self) -> str:
        return f"figure {self.stem} (PDF, SVG, PNG, CSV, alt text)"

    def _repr_mimebundle_(self, include=None, exclude=None):
        from base64 import b64encode

        png = self.folder / f"{self.stem}.png"
        inches = matplotlib.image.imread(png).shape[1] / 300
        picture = b64encode(png.read_bytes()).decode()
        shown = {"width": round(inches * 110), "alt": self.alt}
        return {"text/plain": repr(self), "image/png": picture}, {"image/png": shown}


def save(drawn, stem: str, data: pd.DataFrame, folder: str | Path = "figures") -> Saved:
    """Write a figure as PDF (font type 42), SVG, PNG (300 dpi), the CSV of what it shows, and its alt text.

    Texts in the SVG are outlines, so that it looks the same where the font is not installed; the PDF keeps them as
    text, but for names in a font that is no TrueType (Noto CJK, for Japanese), which are outlines there too. What no
    installed font draws becomes a number, and a warning says which and what to install. The same table gives the same
    bytes: no dates, versions or random ids.

    Parameters
    ----------
    drawn : Axes, array of Axes or Figure
        As made by a function of ``figures``.
    stem : str
        File name without ending.
    data : DataFrame
        The table that was drawn. Rows of it that the figure does not show are not written.
    folder : path
        Made if missing; a relative path counts from the project folder.

    Returns
    -------
    Saved
        As the last expression of a notebook cell it shows the PNG. ``alt`` says in words what the figure shows; it is
        also in ``stem.txt``, in the metadata of the PDF, SVG and PNG, and the alt text of the notebook's image.

    Raises
    ------
    InputError
        A stem that names a folder, no figure or table, a folder or file that cannot be written.
    """
    if not isinstance(stem, str) or stem in ("", ".", "..") or re.search(r"[/\\\x00-\x1f]", stem):
        raise InputError(f"stem must be a file name without ending and without a folder, got {stem!r:.80}.")
    if not isinstance(data, pd.DataFrame):
        raise InputError(f"data must be the table that was drawn, got {type(data).__name__}.")
    figure = figure_of(drawn)
    alt = getattr(figure, "alt_text", "") or f"A figure drawn from a table of {len(data)} rows."
    folder = in_project(folder)
    told = {
        "pdf": {"Title": stem, "Subject": alt, "CreationDate": None, "Creator": None, "Producer": None},
        "svg": {"Title": stem, "Description": alt, "Date": None, "Creator": None},
        "png": {"Title": stem, "Description": alt, "Software": None},
    }
    with style():
        if key := draw_only_known_glyphs(figure):
            names = ", ".join(f"{number} is {printable(name)}" for number, name in key.items())
            alt = f"{alt} Names are drawn as numbers: {names}."
            told["pdf"]["Subject"] = told["svg"]["Description"] = told["png"]["Description"] = alt
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # laid out once, so that the formats are alike
        for kind, metadata in told.items():
            with writing(folder, f"{stem}.{kind}") as file:
                figure.savefig(file, metadata=metadata, dpi=300 if kind == "png" else "figure")
    with writing(folder, f"{stem}.txt") as file:
        file.write_text(f"{alt}\n", encoding="utf-8")
    with writing(folder, f"{stem}.csv") as file:
        shown = getattr(figure, "drawn_rows", data)
        shown.to_csv(file, index=False, float_format="%.6g", lineterminator="\n")
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close(figure)
    return Saved(stem, folder, alt)
