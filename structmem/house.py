"""House style of the figures: sizes, a colour and marker per structure, glyphs that exist, and how they are saved."""

from __future__ import annotations

import sys
import textwrap
import unicodedata
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import matplotlib
import pandas as pd
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from .errors import choice
from .paths import in_project

WIDTHS = {"column": 3.25, "page": 6.75}  # inches
FONT = "DejaVu Sans"  # comes with matplotlib, so that figures are the same everywhere
# Okabe and Ito's colours, told apart also by shape: the same for a structure in every figure.
STRUCTURE_STYLE = {
    "flat": ("#4D4D4D", "o"), "fixed": ("#0072B2", "s"), "dynamic": ("#D55E00", "D"), "tree": ("#009E73", "^"),
    "rag": ("#CC79A7", "v"),
}  # fmt: skip
_OTHER_STYLES = (
    ("#E69F00", "P"), ("#56B4E9", "X"), ("#8C6BB1", "<"), ("#7F6A3F", ">"), ("#B22222", "p"), ("#1B7F8C", "h"),
)  # fmt: skip
GREY = "#8C8C8C"


def structure_style(structure: str) -> tuple[str, str]:
    """Colour and marker of a structure; one that is not built in gets a fixed one by its name."""
    return STRUCTURE_STYLE.get(structure) or _OTHER_STYLES[crc32(structure.encode()) % len(_OTHER_STYLES)]


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
                "savefig.facecolor": "white", "axes.unicode_minus": True,
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
    """A name as a figure shows it: one kind of white space, no control characters, wrapped."""
    clean = "".join(" " if char.isspace() else char for char in str(text))
    clean = "".join(char for char in clean if unicodedata.category(char) not in ("Cc", "Cf", "Cs"))
    return "\n".join(textwrap.wrap(clean, width, break_on_hyphens=True)) or "(blank)"


@dataclass(frozen=True)
class Saved:
    """A saved figure: shows its PNG in a notebook, at print size, and prints the same text everywhere."""

    stem: str
    folder: Path

    def __repr__(self) -> str:
        return f"figure {self.stem} (PDF, PNG, CSV)"

    def _repr_mimebundle_(self, include=None, exclude=None):
        from base64 import b64encode

        png = self.folder / f"{self.stem}.png"
        inches = matplotlib.image.imread(png).shape[1] / 300
        picture = b64encode(png.read_bytes()).decode()
        return {"text/plain": repr(self), "image/png": picture}, {"image/png": {"width": round(inches * 110)}}


def save(drawn, stem: str, data: pd.DataFrame, folder: str | Path = "figures") -> Saved:
    """Write a figure as PDF (font type 42), PNG (300 dpi) and the CSV of what it shows, and close it.

    Parameters
    ----------
    drawn : Axes, array of Axes or Figure
    stem : str
        File name without ending.
    data : DataFrame
        The table that was drawn.
    folder : path
        Made if missing; a relative path counts from the project folder.

    Returns
    -------
    Saved
        As the last expression of a notebook cell it shows the PNG.
    """
    figure = drawn if isinstance(drawn, Figure) else (drawn if isinstance(drawn, Axes) else drawn.flat[0]).figure
    folder = in_project(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with style():
        draw_only_known_glyphs(figure)
        # No dates and versions in the files: the same table gives the same bytes.
        figure.savefig(folder / f"{stem}.pdf", metadata={"CreationDate": None, "Creator": None, "Producer": None})
        figure.savefig(folder / f"{stem}.png", dpi=300, metadata={"Software": None})
    data.to_csv(folder / f"{stem}.csv", index=False, float_format="%.6g", lineterminator="\n")
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close(figure)
    return Saved(stem, folder)


def draw_only_known_glyphs(figure: Figure) -> dict[str, str]:
    """Give texts a font that has their characters; what no font has becomes a number, with one warning as the key.

    Returns
    -------
    dict
        Number, as drawn, to text; empty when every text can be drawn.
    """
    key: dict[str, str] = {}
    numbers: dict[str, str] = {}
    families = [FONT]

    def mend(text: str) -> str:
        lacking = {char for char in text if not char.isspace() and ord(char) not in _characters(FONT)}
        if not lacking:
            return text
        for family in families[1:]:
            lacking -= {char for char in lacking if ord(char) in _characters(family)}
        if lacking and (family := _family_with(lacking)):
            families.append(family)
            lacking = set()
        if not lacking:
            return text
        number = numbers.setdefault(text, f"#{len(numbers) + 1}")
        key[number] = text
        return number

    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            old = [tick.get_text() for tick in axis.get_ticklabels()]
            new = [mend(text) for text in old]
            if new != old:
                axis.set_ticklabels(new)
    for artist in figure.findobj(Text):
        mended = mend(artist.get_text())
        if mended != artist.get_text():
            artist.set_text(mended)
    if len(families) > 1:
        for artist in figure.findobj(Text):
            artist.set_fontfamily(families)
        for axes in figure.axes:
            axes.tick_params(labelfontfamily=families)
    if key:
        names = ", ".join(f"{number} = {' '.join(text.split())}" for number, text in key.items())
        warnings.warn(f"No installed font draws these names; the figure shows numbers: {names}.", stacklevel=3)
    return key


_CHARACTERS: dict[str, frozenset[int]] = {}


def _characters(family: str) -> frozenset[int]:
    if family not in _CHARACTERS:
        path = font_manager.findfont(font_manager.FontProperties(family=family))
        _CHARACTERS[family] = frozenset(font_manager.get_font(path).get_charmap())
    return _CHARACTERS[family]


def _family_with(characters: set[str]) -> str | None:
    """The first installed family, by name, that has all these characters; emoji in colour cannot be embedded."""
    for family in sorted({entry.name for entry in font_manager.fontManager.ttflist}):
        if family in ("Last Resort", ".LastResort") or "Emoji" in family:
            continue
        try:
            if all(ord(char) in _characters(family) for char in characters):
                return family
        except (OSError, RuntimeError, ValueError):
            continue  # an installed font file that cannot be read is no reason to draw nothing
    return None
