"""Glyphs that exist: texts get a font that has their characters, and names that no font draws become numbers."""

from __future__ import annotations

import warnings
from functools import lru_cache

from matplotlib import font_manager
from matplotlib.figure import Figure
from matplotlib.text import Text

FONT = "DejaVu Sans"  # comes with matplotlib, so that figures are the same everywhere


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


@lru_cache(maxsize=4096)
def text_width(text: str) -> float:
    """Width of a line in units of the font's size; characters that the font lacks count as two thirds."""
    known = "".join(char for char in text if ord(char) in _characters(FONT))
    font = font_manager.get_font(font_manager.findfont(font_manager.FontProperties(family=FONT)))
    font.set_size(100, 72)
    font.set_text(known)
    return font.get_width_height()[0] / 64 / 100 + (len(text) - len(known)) * 2 / 3


_CHARACTERS: dict[str, frozenset[int]] = {}


def _characters(family: str) -> frozenset[int]:
    if family not in _CHARACTERS:
        # Not findfont, which logs a line for every family without a face of normal weight.
        faces = [face for face in font_manager.fontManager.ttflist if face.name == family]
        face = min(faces, key=lambda face: (face.weight not in (400, "normal"), face.style != "normal", face.fname))
        _CHARACTERS[family] = frozenset(font_manager.get_font(face.fname).get_charmap())
    return _CHARACTERS[family]


def _family_with(characters: set[str]) -> str | None:
    """The first installed family, by name, that has all these characters; emoji in colour cannot be embedded."""
    for family in sorted({entry.name for entry in font_manager.fontManager.ttflist}):
        if family.startswith(("Last Resort", ".LastResort")) or "Emoji" in family:  # the former draws boxes
            continue
        try:
            if all(ord(char) in _characters(family) for char in characters):
                return family
        except (OSError, RuntimeError, ValueError):
            continue  # an installed font file that cannot be read is no reason to draw nothing
    return None
