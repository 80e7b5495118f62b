"""YAML files read strictly: every key known, every value of its type, and where it stands when it is not."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from reprlib import Repr
from typing import NamedTuple

from .errors import InputError

# Of lists within lists only the top: an anchor can make a few lines of YAML a value of a billion parts.
_shortened = Repr()
_shortened.maxlevel, _shortened.maxstring, _shortened.maxother, _shortened.maxlong = 3, 80, 80, 80


def _short(value: object) -> str:
    try:
        return f"{_shortened.repr(value):.80}"
    except ValueError:
        return "a number of thousands of digits"


def yaml_value(text: str, name: str, expected: str) -> object:
    """The value of a YAML text; a key given twice, of which plain YAML readers keep the last, is refused.

    Raises
    ------
    InputError
        With the file's name and the line.
    """
    import yaml  # only when a YAML file is read: the package itself stays quick to import

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node, deep=False):
            seen = set()
            for key, _ in node.value:
                if (key.tag, str(key.value)) in seen:
                    raise yaml.MarkedYAMLError(problem=f"key {key.value!r} is there twice", problem_mark=key.start_mark)
                seen.add((key.tag, str(key.value)))
            return super().construct_mapping(node, deep)

        def construct_scalar(self, node):
            if re.search("[\ud800-\udfff]", str(node.value)):  # half a character: no file and no table can hold it
                raise yaml.MarkedYAMLError(problem="a lone surrogate is no text", problem_mark=node.start_mark)
            return super().construct_scalar(node)

    try:
        return yaml.load(text, Loader=Loader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise InputError(f"{name} line {line}: {error.problem}; expected {expected}.") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise InputError(f"{name}: {error}; expected {expected}.") from None
    except (ValueError, TypeError, LookupError, AttributeError) as error:  # 2026-13-45, !!int foo, 5,000 digits, …
        raise InputError(f"{name}: a value that YAML cannot read ({error}); expected {expected}.") from None


class Part(NamedTuple):
    """A value of the file and where it stands."""

    file: str
    key: str
    value: object

    def wrong(self, expected: str) -> InputError:
        """The error for this value."""
        where = f"{self.file}: {self.key!r}" if self.key else f"{self.file}: the plan"
        return InputError(f"{where} is {_short(self.value)}; expected {expected}.")

    def parts(self, required: Iterable[str], optional: Iterable[str] = ()) -> dict[str, Part]:
        """The values of a mapping that has these keys and no other."""
        menu = [*required, *optional]
        if not isinstance(self.value, dict):
            raise self.wrong(f"a mapping with the keys {menu}")
        named = {str(name): value for name, value in self.value.items()}
        found = {name: Part(self.file, f"{self.key}.{name}".lstrip("."), value) for name, value in named.items()}
        if unknown := [name for name in found if name not in menu]:
            raise InputError(f"{self.file}: unknown key {found[unknown[0]].key!r}; expected some of {menu}.")
        if missing := [name for name in required if name not in found]:
            where = f"{self.key}.{missing[0]}".lstrip(".")
            raise InputError(f"{self.file}: {where!r} is missing; expected the keys {list(required)}.")
        return found

    def items(self) -> list[Part]:
        """The items of a list that has any."""
        if not isinstance(self.value, list) or not self.value:
            raise self.wrong("a list with at least one item")
        return [Part(self.file, f"{self.key}[{place}]", value) for place, value in enumerate(self.value, 1)]

    def text(self) -> str:
        """Text that is not blank, without blanks around it."""
        if not isinstance(self.value, str) or not self.value.strip():
            raise self.wrong("text (in YAML, put it in quotes)")
        return self.value.strip()

    def one_of(self, menu: Iterable[str]) -> str:
        """A text on the menu."""
        if not isinstance(self.value, str) or self.value not in menu:
            raise self.wrong(f"one of {list(menu)}")
        return self.value

    def whole(self, least: int, most: float = math.inf) -> int:
        """A whole number; a truth value is none."""
        if type(self.value) is not int or not least <= self.value <= most:
            raise self.wrong(f"a whole number from {least}" + (f" to {most}" if most < math.inf else ""))
        return self.value

    def number(self, above: float, below: float) -> float:
        """A number between two others."""
        if type(self.value) not in (int, float) or not above < self.value < below:
            raise self.wrong(f"a number between {above} and {below}")
        return float(self.value)
