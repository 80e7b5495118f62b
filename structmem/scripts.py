"""Scripts: which texts are mostly outside Latin script, and the warning that the default structurer misreads them."""

from __future__ import annotations

import unicodedata
import warnings
from collections.abc import Iterable
from functools import lru_cache

from .sorters import EMBEDDING


@lru_cache(maxsize=16384)
def _latin(char: str) -> bool | None:
    """Whether a character is a letter of Latin script; None for what is no letter."""
    if not unicodedata.category(char).startswith("L"):
        return None
    return "LATIN" in unicodedata.name(char, "").split()


def mostly_outside_latin(text: str) -> bool:
    """Whether more than half of a text's letters are of another script than Latin.

    Letters are those of Unicode (general category L) after compatibility normalization, so that full-width and
    mathematical Latin letters are Latin; a letter's script is read from its Unicode name. Digits, emoji, punctuation,
    spaces and combining marks do not count; a text without letters is not outside. Accents change nothing.

    Examples
    --------
    >>> [mostly_outside_latin(t) for t in ("Größe: naïve café", "糖尿病の薬を毎朝飲んでいる", "Пьёт кофе", "😀 42")]
    [False, True, True, False]
    """
    if text.isascii():
        return False
    known = [_latin(char) for char in unicodedata.normalize("NFKC", text)]
    return known.count(False) > known.count(True)


def script_remark(texts: Iterable[str], structurer: object = EMBEDDING) -> str | None:
    """What to know, in two short sentences, when the default structurer sorts texts that it cannot read; else None.

    Parameters
    ----------
    texts : iterable of str
        Memories, and the query where the structure uses it; equal ones count once.
    structurer : str or callable
        Only ``"embedding"`` (WordLlama) is concerned.
    """
    if structurer != EMBEDDING:
        return None
    different = list(dict.fromkeys(texts))
    n = sum(map(mostly_outside_latin, different))
    if not n:
        return None
    return (
        f"{n} of {len(different)} texts are mostly outside Latin script; structurer 'embedding' reads English and "
        "sorts most of them wrongly. Choose structurer='embedding:multilingual' or a model ('openai/…')."
    )


def warn_of_script(texts: Iterable[str], structurer: object = EMBEDDING, depth: int = 3) -> None:
    """Give `script_remark` as one UserWarning, where there is one, at the caller `depth` levels up."""
    if remark := script_remark(texts, structurer):
        warnings.warn(remark, UserWarning, stacklevel=depth)
