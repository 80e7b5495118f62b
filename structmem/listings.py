"""What a sorting model is shown and what it names: memories as numbered lines, batches, and names made comparable."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache

MAX_NAME = 40  # characters of a new domain or leaf; longer "names" are sentences
MAX_CHARS = 40_000  # characters of memories in one request, some 10,000 tokens; a longer memory goes alone, uncut

# Alphabets with letters that look alike; a word that mixes them imitates another word.
_ALIKE = {"LATIN", "CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE", "COPTIC"}


def quoted(text: str) -> str:
    """A memory as one JSON string; line breaks, controls and invisible characters are escaped, so it forges no line."""
    hidden = {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    # json.dumps writes characters beyond the basic plane as the surrogate pairs that JSON wants.
    escaped = {ord(c): json.dumps(c)[1:-1] for c in hidden if c not in "\n\r\t\b\f" and c >= "\x7f"}
    return json.dumps(text, ensure_ascii=False).translate(escaped)


def listing(texts: Sequence[str], numbers: Sequence[int] | None = None) -> str:
    """Numbered memories, one a line, from 1 unless `numbers` says otherwise."""
    return "\n".join(f"{k}. {quoted(text)}" for k, text in zip(numbers or range(1, len(texts) + 1), texts, strict=True))


def batches(positions: Sequence[int], texts: Sequence[str], size: int) -> list[list[int]]:
    """Positions in order, in groups of at most `size` memories and `MAX_CHARS` characters; a longer memory alone."""
    groups: list[list[int]] = []
    room = 0
    for i in positions:
        if not groups or len(groups[-1]) == size or len(texts[i]) > room:
            groups.append([])
            room = MAX_CHARS
        groups[-1].append(i)
        room -= len(texts[i])
    return groups


def _letters(name: str, also: str = "") -> str:
    """Letters, their marks, digits and the characters in `also`; anything else becomes a space."""
    folded = unicodedata.normalize("NFKC", name).casefold()
    folded = "".join(c for c in folded if unicodedata.category(c) != "Cf")
    return "".join(c if c in also or unicodedata.category(c)[0] in "LMN" else " " for c in folded)


def fold(name: str) -> str:
    """The form under which two names are one: case, punctuation, ``&``/``and`` and a plural ending do not count."""
    words = _letters(name.replace("&", " and ")).split()
    words = [word for word in words if word != "and"] or words
    return " ".join(re.sub(r"(?<=\w{3})(?<!s)s$", "", re.sub(r"(?<=\w{2})ies$", "y", word)) for word in words)


# What a model writes when it has no name, and words with which it says that it cannot tell.
_NO_NAMES = frozenset(
    map(
        fold,
        "|null|n/a|not applicable|other|others|unknown|unclassified|uncategorized|uncategorised|unclassifiable|misc|"
        "miscellaneous|domain|no domain|no category|undefined|unspecified|undetermined|tbd|general|various|mixed|"
        "multiple|ambiguous|anything else|everything else|something else|"
        "その他|該当なし|なし|不明|未分類|分類不能|其他|无|未分类|기타|없음|미분류".split("|"),
    )
)
_CANNOT_TELL = {"none", "not", "unsure", "unclear", "uncertain", "cannot", "can't", "unable", "sorry"}


def clean_name(name: str) -> str | None:
    """A new domain's or leaf's name in one line of letters, or None when the model gave no name."""
    kept = " ".join(_letters(name.replace("’", "'"), also="&'-").split()).strip(" -&'")
    alphabets = [{unicodedata.name(c, "").split(" ")[0] for c in word} & _ALIKE for word in kept.split()]
    if fold(kept) in _NO_NAMES or _CANNOT_TELL & set(kept.split()):
        return None
    if len(kept) > MAX_NAME or any(len(found) > 1 for found in alphabets):
        return None
    return kept if any(c.isalpha() for c in kept) else None


# -- names of a menu --------------------------------------------------------------------------------------------------

Menu = tuple[frozenset[str], dict[str, str]]
_BETWEEN = (",", ";", "/", r"\|", "&", r"\+", r"\bor\b", r"\band\b")


@lru_cache(maxsize=1024)
def plain(name: str) -> str:
    """The form in which a name is looked for on a menu: trimmed, without regard to case, width and what nobody sees."""
    seen = "".join(c for c in name if unicodedata.category(c) != "Cf")
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", seen).strip().casefold())


def as_menu(labels: Iterable[str]) -> Menu:
    """The labels, and the plain spellings that belong to one of them only."""
    exact = frozenset(labels)
    owners: dict[str, set[str]] = {}
    for label in exact:
        owners.setdefault(plain(label), set()).add(label)
    return exact, {spelling: min(own) for spelling, own in owners.items() if len(own) == 1}


def on_menu(name: object, menu: Menu) -> str | None:
    """The label that a name stands for; never by its beginning."""
    if not isinstance(name, str):
        return None
    return name if name in menu[0] else menu[1].get(plain(name))


def names_several(name: str, menu: Menu) -> bool:
    """Whether a name is two or more names of the menu, as in ``health / finance``."""
    splits = (re.split(between, name, flags=re.IGNORECASE) for between in (*_BETWEEN, "|".join(_BETWEEN)))
    return any(sum(on_menu(part, menu) is not None for part in parts) > 1 for parts in splits)
