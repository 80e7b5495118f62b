"""Options as the results keep them, JSON texts: read, and said in words that tell several apart."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable


def options_of(text: object) -> dict:
    """The options that a results row names; empty where it names none."""
    try:
        found = json.loads(text) if isinstance(text, str) else {}
    except ValueError:
        found = {}
    return found if isinstance(found, dict) else {}


def option_words(texts: Iterable[str]) -> dict[str, str]:
    """Options as JSON to words that tell them apart: where several have an option, only if its value differs.

    Options that nothing tells apart in this way (those of another structure, say) are said in full; a text without
    options stays as it is.

    Examples
    --------
    >>> option_words(['{"retries": 2, "wording": 0}', '{"retries": 2, "wording": 1}'])
    {'{"retries": 2, "wording": 0}': 'wording 0', '{"retries": 2, "wording": 1}': 'wording 1'}
    """
    read = {text: options_of(text) for text in dict.fromkeys(texts)}
    spelled: dict[str, set[str]] = {}
    for options in read.values():
        for name, value in options.items():
            spelled.setdefault(name, set()).add(json.dumps(value))
    told = {name for name, values in spelled.items() if len(values) > 1}
    short = {text: _words({k: v for k, v in options.items() if k in told}) for text, options in read.items()}
    uses = Counter(short.values())
    return {
        text: short[text] if short[text] and uses[short[text]] == 1 else _words(options) or text
        for text, options in read.items()
    }


def _words(options: dict) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {_value(value)}" for name, value in options.items())


def _value(value: object) -> str:
    return "none" if value is None else str(value)
