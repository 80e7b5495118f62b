"""One reader of model replies for classifier, proposer and judge: labels by memory number, scores read strictly."""

from __future__ import annotations

import dataclasses
import math
import numbers
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from .listings import Menu, as_menu, names_several, on_menu, plain
from .replytext import Parsed, ReplyError, is_blank, read_json, short, split_reasoning, text_of

__all__ = [
    "Assignments", "Parsed", "Proposal", "ReplyError", "is_blank", "read_assignments", "read_json", "read_proposal",
    "read_score", "read_verdict", "split_reasoning", "text_of",
]  # fmt: skip

MAX_NAME = 60  # characters of a name that a model invents; longer ones are sentences

_NUMBER = re.compile(r"[+-]?[0-9]{1,20}(?:\.[0-9]{1,20})?(?:[eE][+-]?[0-9]{1,3})?")
_FRACTION = re.compile(r"([0-9]{1,6})\s*+(?:/|out\s++of)\s*+([0-9]{1,6})", re.I)
_MEMORY_NUMBER = re.compile(r"(?:(?:memory|mem|m|number|no|id)[\s_.:#-]*+|[#\[(]?)([0-9]{1,9})[\]).:]?", re.I)
_ID_KEYS = ("memory", "memory_id", "memory_number", "id", "number", "index")
_SEVERAL = "memories"
_LABEL_KEYS = ("domain", "label", "category", "name")
_LEAF_KEYS = ("subdomain", "subcategory", "leaf")
_PROPOSAL_KEYS = ("domains", "subcategories", "subdomains", "leaves")
_NONE = frozenset(
    "none|none of the above|none of these|none of them|none of the domains|none of these domains|no domain|"
    "no category|no suitable domain|no matching domain|unclassified|unclassifiable|uncategorized|uncategorised|"
    "該当なし|なし|未分類|分類不能|无|未分类|없음|미분류".split("|")
)


def read_score(value: object, low: int, high: int) -> tuple[int, str | None]:
    """Read a score strictly: nothing is clamped, rounded or found in prose.

    Parameters
    ----------
    value : object
        A number, or a whole string such as ``"4"``, ``"4.0"``, ``"4/5"`` or ``"4 out of 5"`` where 5 is `high`.
    low, high : int
        The ends of the scale, both allowed.

    Returns
    -------
    score : int
    conversion : str or None
        What was converted, for the log; None for an integer.

    Raises
    ------
    ReplyError
        ``invalid``; the detail begins with ``no_score``, ``not_a_number``, ``not_an_integer``, ``other_scale`` or
        ``out_of_range``.
    """
    expected = f"expected a whole number from {low} to {high}"
    number: object = value
    if value is None:
        raise ReplyError("invalid", f"no_score: the score is null; {expected}.")
    if isinstance(value, str):
        text = value.strip()
        if fraction := _FRACTION.fullmatch(text):
            if int(fraction[2]) != high:
                raise ReplyError("invalid", f"other_scale: the score is {short(value)}; {expected}.")
            number = int(fraction[1])
        elif _NUMBER.fullmatch(text):
            number = Decimal(text)
        else:
            raise ReplyError("invalid", f"not_a_number: the score is {short(value)}; {expected}.")
    elif isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ReplyError("invalid", f"not_a_number: the score is {short(value)}; {expected}.")
    elif not isinstance(value, numbers.Integral) and not math.isfinite(value):
        raise ReplyError("invalid", f"not_a_number: the score is {value}; {expected}.")
    if not low <= number <= high:
        raise ReplyError("invalid", f"out_of_range: the score is {short(value)}; {expected}.")
    if number != int(number):
        raise ReplyError("invalid", f"not_an_integer: the score is {short(value)}; {expected}.")
    same = isinstance(value, numbers.Integral)
    return int(number), None if same else f"score {short(value)} read as {int(number)}"


def read_verdict(text: object, *, score_field: str, low: int, high: int, finish_reason: str | None = None) -> Parsed:
    """Read a judge's verdict: the declared score field and a reasoning that says something.

    Returns
    -------
    Parsed
        `value` is ``{"score": int, "reasoning": str}``; `repairs` also holds the conversion of the score.

    Raises
    ------
    ReplyError
        Also for a verdict without reasoning, which the benchmark's own scorer refuses too.
    """

    def accept(value: object) -> tuple[dict, str | None]:
        if not isinstance(value, dict):
            raise ReplyError("invalid", f"no_score: expected an object with {score_field!r}, found {short(value)}.")
        if score_field not in value:
            keys = ", ".join(short(key) for key in list(value)[:5])
            raise ReplyError("invalid", f"no_score: expected the field {score_field!r}, found {keys or 'no field'}.")
        score, converted = read_score(value[score_field], low, high)
        if any(
            plain(key) == plain(score_field) and (isinstance(other, bool) or other != value[score_field])
            for key, other in value.items()
        ):
            raise ReplyError("ambiguous", f"two values for {score_field!r}, under keys that differ in case only.")
        said = value.get("reasoning")
        if not isinstance(said, str) or is_blank(said):
            raise ReplyError("invalid", f"no_reasoning: expected a text in 'reasoning', found {short(said)}.")
        return {"score": score, "reasoning": said}, converted

    parsed = read_json(text, finish_reason=finish_reason, accept=accept)
    value, converted = parsed.value
    return Parsed(value, parsed.repairs + ((converted,) if converted else ()), parsed.reasoning)


@dataclass(frozen=True)
class Assignments:
    """What a classifier said; every asked memory number is in exactly one of the first five.

    Parameters
    ----------
    labels : dict of str to str
        Memory number → label, spelled as on the menu.
    missing : tuple of str
        Numbers that the reply does not mention.
    conflicts : tuple of str
        Numbers with two different answers.
    none : tuple of str
        Numbers of which the model said that no label fits.
    bad_labels : dict of str to object
        Memory number → what stood there instead of a label of the menu (None for null or nothing).
    unknown_ids : tuple of str
        What the reply numbered that was not asked.
    new_labels : tuple of str
        Labels outside the menu in order of appearance (only with ``allow_new``; they are in `labels` too).
    repairs : tuple of str
    reasoning : str or None
    """

    labels: dict[str, str]
    missing: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    none: tuple[str, ...] = ()
    bad_labels: dict[str, object] = field(default_factory=dict)
    unknown_ids: tuple[str, ...] = ()
    new_labels: tuple[str, ...] = ()
    repairs: tuple[str, ...] = ()
    reasoning: str | None = None


def read_assignments(
    text: object,
    *,
    ids: Sequence[str],
    labels: Iterable[str],
    finish_reason: str | None = None,
    allow_new: bool = False,
    others: Iterable[str] = (),
) -> Assignments:
    """Read a classifier's reply, matched by memory number and never by position.

    Parameters
    ----------
    text : str, list of blocks or None
        Asked for as ``{"assignments": [{"memory": 1, "domain": "health"}, …]}``; an object from number to label, one
        from label to numbers and a bare list of objects are read too.
    ids : sequence of str
        The memory numbers as shown in the prompt.
    labels : iterable of str
        The menu. A label matches exactly, else trimmed and without regard to case; never by its beginning.
    allow_new : bool
        Take a short one-line label outside the menu as a new label.
    others : iterable of str
        Numbers of memories that are not asked for in this request; what is said of them is passed over.

    Raises
    ------
    ReplyError
        Also ``invalid`` when the reply counts from another start than the prompt: a shift would relabel every memory.
    """
    asked = [str(i) for i in ids]
    known, passed, menu = set(asked), set(others), as_menu(labels)

    def accept(value: object) -> Assignments:
        pairs = _pairs(value, asked, menu)
        read = [(_number(raw, known), raw, label) for raw, label in pairs]
        _refuse_shift([number for number, _, _ in read if number is not None], asked)
        unknown = [short(raw) if number is None else number for number, raw, _ in read if number not in known | passed]
        if read and not any(number in known for number, _, _ in read):
            raise ReplyError("invalid", "the reply names no memory number that was asked; expected one for each label.")
        if len(set(unknown)) >= max(2, len(asked)):  # an answer to another request, where 1 was another memory
            raise ReplyError("invalid", f"{len(set(unknown))} numbers were not asked, and {len(asked)} were.")
        found: dict[str, list[tuple[str, object]]] = {}
        for number, _, label in read:
            outcomes = found.setdefault(number, []) if number in known else None
            if outcomes is not None and len(outcomes) < 2:  # two are a conflict already
                outcome = _outcome(label, menu, allow_new)
                outcomes += [outcome] if outcome not in outcomes else []
        single = {i: found[i][0] for i in asked if len(found.get(i, ())) == 1}
        chosen = {i: said for i, (kind, said) in single.items() if kind in ("label", "new")}
        return Assignments(
            labels=chosen,
            missing=tuple(i for i in asked if i not in found),
            conflicts=tuple(i for i in asked if len(found.get(i, ())) > 1),
            none=tuple(i for i, (kind, _) in single.items() if kind == "none"),
            bad_labels={i: said for i, (kind, said) in single.items() if kind == "bad"},
            unknown_ids=tuple(dict.fromkeys(name[:60] for name in unknown)),
            new_labels=tuple(dict.fromkeys(said for kind, said in single.values() if kind == "new")),
            repairs=("memory number read from text",)
            if any(isinstance(raw, str) and number in known and raw.strip() != number for number, raw, _ in read)
            else (),
        )

    parsed = read_json(text, finish_reason=finish_reason, accept=accept)
    result = parsed.value
    return dataclasses.replace(result, repairs=parsed.repairs + result.repairs, reasoning=parsed.reasoning)


def _first(item: Mapping, keys: Sequence[str]) -> object:
    return next((item[key] for key in keys if key in item), None)


def _number(raw: object, known: set[str]) -> str | None:
    """A memory number as in the prompt; None when it is not a number at all."""
    if isinstance(raw, float) and raw.is_integer():
        raw = int(raw)
    if isinstance(raw, int) and not isinstance(raw, bool):
        return str(raw)
    if not isinstance(raw, str):
        return None
    if raw.strip() in known:
        return raw.strip()
    written = _MEMORY_NUMBER.fullmatch(raw.strip())
    return str(int(written[1])) if written else None


def _pairs(value: object, asked: Sequence[str], menu: Menu) -> list[tuple[object, object]]:
    """(raw number, raw label) of each statement of a reply, for the few obvious shapes."""
    known = set(asked)
    listed = isinstance(value, dict) and "assignments" in value
    if listed:
        value = value["assignments"]
        if value is None:
            return []
    if isinstance(value, list) and (value or listed) and all(isinstance(item, dict) for item in value):
        return [said for item in value for said in _statements(item, known)]
    if isinstance(value, dict):
        labelled = any(key in value for key in _LABEL_KEYS)
        if labelled and (any(key in value for key in _ID_KEYS) or _numbered(value.get(_SEVERAL), known)):
            return _statements(value, known)
        if any(_number(key, known) in known for key in value):
            return list(value.items())
        lists = {label: numbers_ for label, numbers_ in value.items() if isinstance(numbers_, list)}
        if any(on_menu(key, menu) for key in lists) and not any(on_menu(key, menu) for key in value.keys() - lists):
            return [(number, label) for label, numbers_ in lists.items() for number in numbers_]
        if labelled and len(asked) == 1:
            return [(asked[0], value)]
    raise ReplyError("invalid", f"expected a list of objects with 'memory' and 'domain', found {short(value)}.")


def _numbered(value: object, known: set[str]) -> bool:
    return isinstance(value, list) and any(_number(raw, known) in known for raw in value)


def _statements(item: dict, known: set[str]) -> list[tuple[object, object]]:
    said = {key: item[key] for key in (*_LABEL_KEYS, *_LEAF_KEYS) if key in item}
    given = [item[key] for key in _ID_KEYS if key in item]
    if not given and _numbered(item.get(_SEVERAL), known):
        return [(number, said) for number in item[_SEVERAL]]
    numbered = {number: raw for raw in given if (number := _number(raw, known)) is not None}
    if len(numbered) > 1:  # which of the two is the memory's cannot be told
        return [(" or ".join(numbered), said)]
    return [(next(iter(numbered.values()), given[0] if given else None), said)]


def _outcome(label: object, menu: Menu, allow_new: bool) -> tuple[str, object]:
    """('label' | 'new' | 'none' | 'bad', what)."""
    for _ in range(2):  # the label of a statement, which may itself be an object with a label
        if isinstance(label, dict):
            leaf, label = _first(label, _LEAF_KEYS), _first(label, _LABEL_KEYS)
            label = label[0] if isinstance(label, list) and len(label) == 1 else label
            if isinstance(label, str) and isinstance(leaf, str) and leaf.strip():
                label = f"{label.strip()}/{leaf.strip()}"
    if (name := on_menu(label, menu)) is not None:
        return "label", name
    if not isinstance(label, str):
        return "bad", label
    if plain(label).rstrip(".") in _NONE:
        return "none", label
    clean = _clean_name(label)
    return ("new", clean) if allow_new and clean and not names_several(clean, menu) else ("bad", label)


def _clean_name(name: object) -> str | None:
    """A name that a model invented, trimmed; None when it is no short single line with a letter in it."""
    if not isinstance(name, str) or len(name.strip()) > MAX_NAME or not any(c.isalpha() for c in name):
        return None
    name = name.strip()
    return name if all(unicodedata.category(c) not in ("Cc", "Zl", "Zp", "Cs") for c in name) else None


def _refuse_shift(numbers_: Sequence[str], asked: Sequence[str]) -> None:
    """Refuse a reply whose numbers fit another way of counting and not the one of the prompt."""
    if not numbers_ or not all(i.isdecimal() for i in asked):
        return
    said = {int(i) for i in numbers_ if i.lstrip("-").isdecimal()}
    want, n = {int(i) for i in asked}, len(asked)
    others = ({i - 1 for i in want}, {i + 1 for i in want}, set(range(n)), set(range(1, n + 1)))
    if said <= want:
        return
    if (0 in said and 0 not in want) or any(said <= other for other in others):
        raise ReplyError(
            "invalid", f"shifted numbering: the reply counts from {min(said)}, the prompt from {min(want)}."
        )


class Proposal(dict):
    """Domain → list of proposed subcategory names; `left_out` says what else the reply held."""

    left_out: tuple[str, ...] = ()
    repairs: tuple[str, ...] = ()
    reasoning: str | None = None


def read_proposal(text: object, *, domains: Iterable[str], finish_reason: str | None = None) -> Proposal:
    """Read a proposer's reply, asked for as ``{"domains": {"health": ["diet", …]}}``.

    Parameters
    ----------
    domains : iterable of str
        The menu of domains; a domain outside it is left out and listed.

    Returns
    -------
    Proposal
        Names trimmed, one line, at most 60 characters, each once per domain without regard to case.

    Raises
    ------
    ReplyError
    """
    menu = as_menu(domains)

    def accept(value: object) -> Proposal:
        inner, keyed = value, False
        for key in _PROPOSAL_KEYS if isinstance(value, dict) else ():
            if key in value:
                inner, keyed = value[key], True
                break
        if isinstance(inner, list) and all(isinstance(item, dict) for item in inner):
            pairs = [(_first(item, _LABEL_KEYS), _first(item, _PROPOSAL_KEYS)) for item in inner]
        elif isinstance(inner, dict):
            pairs = list(inner.items())
        else:
            raise ReplyError("invalid", f"expected an object from domain to names, found {short(inner)}.")
        kept: dict[str, dict[str, str]] = {}
        left_out = []
        for domain, names in pairs:
            owner = on_menu(domain, menu)
            if owner is None:
                left_out.append(f"domain {short(domain)}")
                continue
            mine = kept.setdefault(owner, {})
            for name in names if isinstance(names, list | dict) else [] if names is None else [names]:
                name = _first(name, _LABEL_KEYS) if isinstance(name, dict) else name
                clean = _clean_name(name)
                if clean is None:
                    left_out.append(f"name {short(name)} of {owner}")
                else:
                    mine.setdefault(plain(clean), clean)
        if not kept and (left_out or not keyed):
            raise ReplyError("invalid", f"no domain of the menu; found {', '.join(left_out[:5]) or 'nothing'}.")
        found = Proposal((owner, list(names.values())) for owner, names in kept.items())
        found.left_out = tuple(left_out)
        return found

    parsed = read_json(text, finish_reason=finish_reason, accept=accept)
    result = parsed.value
    result.repairs, result.reasoning = parsed.repairs, parsed.reasoning
    return result
