"""Glyphs that exist: texts get a font that has their characters, and names that no font draws become numbers."""

from __future__ import annotations

import re
import warnings
from functools import lru_cache

from matplotlib import font_manager
from matplotlib.figure import Figure
from matplotlib.patheffects import Normal
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
    needed = {char for artist in figure.findobj(Text) for char in _lacking(artist.get_text())}
    if needed and (family := _family_with(needed)):
        families.append(family)  # one for the whole figure where there is one: names in kanji and in kana look alike

    def mend(text: str) -> str:
        lacking = _lacking(text)
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
        outlined = any(map(_is_cff, families[1:]))
        for artist in figure.findobj(Text):
            artist.set_fontfamily(families)
            # Type 42 is TrueType: matplotlib would write a CFF font under that name, which PDF readers may refuse.
            if outlined and _lacking(artist.get_text()):
                artist.set_path_effects([Normal()])  # drawn as a path
        for axes in figure.axes:
            axes.tick_params(labelfontfamily=families)
    if key:
        names = ", ".join(f"{number} = {' '.join(text.split())}" for number, text in key.items())
        advice = _advice(set("".join(key.values())))
        warnings.warn(f"No installed font draws these names; the figure shows numbers: {names}.{advice}", stacklevel=3)
    return key


def _lacking(text: str) -> set[str]:
    """The characters of a text that the house font does not have."""
    return {char for char in text if not char.isspace() and ord(char) not in _characters(FONT)}


_KANA, _HANGUL = re.compile("[\u3040-\u30ff\u31f0-\u31ff]"), re.compile("[\u1100-\u11ff\uac00-\ud7af]")
_HAN = re.compile("[\u2e80-\u2fdf\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")


def _advice(characters: set[str]) -> str:
    """What to install, in one sentence; nothing where no font would help, as with emoji."""
    text = "".join(sorted(char for char in _lacking("".join(characters)) if char.isalpha()))
    if _KANA.search(text) or _HANGUL.search(text) or _HAN.search(text):
        return " For Japanese, Chinese or Korean install Noto Sans CJK (Debian and Ubuntu: apt install fonts-noto-cjk)."
    return " Install a font that has them (Debian and Ubuntu: apt install fonts-noto-core)." if text else ""


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
        _CHARACTERS[family] = frozenset(font_manager.get_font(_file(family)).get_charmap())
    return _CHARACTERS[family]


def _file(family: str) -> str:
    """The file of a family's plain face."""
    # Not findfont, which logs a line for every family without a face of normal weight.
    faces = [face for face in font_manager.fontManager.ttflist if face.name == family]
    return min(faces, key=lambda face: (face.weight not in (400, "normal"), face.style != "normal", face.fname)).fname


def _is_cff(family: str) -> bool:
    """Whether a family's outlines are of the Compact Font Format, as those of Noto CJK are, and not TrueType."""
    with open(_file(family), "rb") as file:
        head = file.read(16)
        if head[:4] == b"ttcf":  # a collection; its first font begins where these four bytes say
            file.seek(int.from_bytes(head[12:16], "big"))
            head = file.read(4)
    return head[:4] == b"OTTO"


def _family_with(characters: set[str]) -> str | None:
    """An installed family that has all these characters; emoji in colour cannot be embedded.

    A plain one before one with serifs or of fixed width; of Han characters the Japanese forms, unless Hangul stands
    beside them; then by name.
    """
    region = "KR" if _HANGUL.search("".join(characters)) else "JP"

    def rank(family: str) -> tuple:
        fancy = any(word in family for word in ("Serif", "Mono", "Mincho", "Ming", "Song"))
        return fancy, region not in family.split(), family

    for again in (False, True):
        if again and not _add_new_fonts():
            break
        for family in sorted({entry.name for entry in font_manager.fontManager.ttflist}, key=rank):
            if family.startswith(("Last Resort", ".LastResort")) or "Emoji" in family:  # the former draws boxes
                continue
            try:
                if all(ord(char) in _characters(family) for char in characters):
                    return family
            except (OSError, RuntimeError, ValueError):
                continue  # an installed font file that cannot be read is no reason to draw nothing
    return None


@lru_cache(maxsize=1)
def _add_new_fonts() -> bool:
    """Make known what was installed after matplotlib made its list of fonts, which it keeps for good; once."""
    manager = font_manager.fontManager
    listed = {entry.fname for entry in manager.ttflist}
    new = [path for path in sorted(font_manager.findSystemFonts()) if path not in listed]
    for path in new:
        try:
            manager.addfont(path)
        except (OSError, RuntimeError, ValueError):
            continue
    return bool(new)
