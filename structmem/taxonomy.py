"""Taxonomy: the domains that memories are sorted into, and what they mean."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path

from .errors import InputError, choice
from .paths import is_file, package_file
from .records import read_text
from .tree import UNCLASSIFIED
from .yamlfile import yaml_value

_MARKUP = set('<>{}[]#*`|\\":=')  # what headings, tags, bullets, slots and "name: items" lines are made of
_LONGEST = 60


@dataclass(frozen=True, slots=True)
class Domain:
    """A life domain: its name, as it stands in headings, and the definition that a sorter reads."""

    name: str
    definition: str


@dataclass(frozen=True)
class Taxonomy:
    """Domains in order, and what is known of how a benchmark's labels map onto them.

    Parameters
    ----------
    name : str
        The name of the file that it came from.
    domains : tuple of Domain
        At least one; the order breaks ties and orders headings.
    accepted : dict of str to tuple of str
        Benchmark label -> names of the domains in which a memory of that label is rightly sorted.
    homeless : tuple of str
        Labels with no natural home here. Their accepted domains are a loose reading, so a hit is computed with and
        without them.

    Raises
    ------
    InputError
        A name or definition that cannot be used (see `load_taxonomy`).
    """

    name: str
    domains: tuple[Domain, ...]
    accepted: dict[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    homeless: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if problem := _problem(self):
            raise InputError(f"taxonomy {self.name!r}: {problem}.")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the domains, in order."""
        return tuple(domain.name for domain in self.domains)

    @property
    def sha256(self) -> str:
        """Hash over names and definitions in order: all that sorting depends on, and nothing else."""
        content = json.dumps([[domain.name, domain.definition] for domain in self.domains], ensure_ascii=False)
        return hashlib.sha256(content.encode("utf-8")).hexdigest()

    def definition(self, name: str) -> str:
        """Definition of a domain."""
        for domain in self.domains:
            if domain.name == name:
                return domain.definition
        raise choice("domain", name, self.names)


def taxonomies() -> list[str]:
    """Names of the taxonomies that ship with the package."""
    return sorted(path.stem for path in package_file("taxonomies").glob("*.yaml"))


def load_taxonomy(source: str | Path | Taxonomy = "life11") -> Taxonomy:
    """Read a taxonomy.

    Parameters
    ----------
    source : str, Path or Taxonomy
        A name from `taxonomies()`, the path of a YAML file, or a taxonomy, which is given back as it is. A file has
        `domains`, a list of `name` and `definition`, and may have `accepted`, a mapping from benchmark labels to
        lists of domain names, or to `{homeless: true, domains: [...]}`.

    Raises
    ------
    InputError
        No such taxonomy, no YAML, or content that cannot be used: no domain, a missing or doubled name, a missing
        definition, the name 'unclassified', a name with line breaks or markup characters, an accepted domain that
        does not exist. File, place, found and expected are named.
    """
    if isinstance(source, Taxonomy):
        return source
    menu = taxonomies()
    named = isinstance(source, str) and source in menu
    if not named and not (isinstance(source, str | Path) and is_file(source)):
        raise InputError(f"taxonomy must be one of {menu} or the path of a YAML file, got {str(source)!r:.200}.")
    path = package_file("taxonomies", f"{source}.yaml") if named else Path(source)
    data = yaml_value(read_text(path), path.name, "YAML with 'domains'")
    try:
        return Taxonomy(path.stem, *_parts(data))
    except _Unusable as error:
        raise InputError(f"{path.name}: {error}.") from None


class _Unusable(ValueError):
    """Found and expected, without the file."""


def _parts(data: object) -> tuple[tuple[Domain, ...], dict[str, tuple[str, ...]], tuple[str, ...]]:
    if not isinstance(data, dict) or not isinstance(data.get("domains"), list):
        raise _Unusable("no list 'domains'; expected 'domains:' followed by items with 'name' and 'definition'")
    if extra := sorted(map(str, set(data) - {"domains", "accepted"})):
        raise _Unusable(f"unknown key {extra[0]!r}; expected 'domains' and, if wanted, 'accepted'")
    domains = []
    for position, item in enumerate(data["domains"], start=1):
        if not isinstance(item, dict) or set(item) != {"name", "definition"}:
            found = sorted(map(str, item)) if isinstance(item, dict) else repr(item)
            raise _Unusable(f"domain {position} has {found}; expected 'name' and 'definition'")
        definition = item["definition"]
        domains.append(Domain(item["name"], definition.strip() if isinstance(definition, str) else definition))
    labels = data.get("accepted") or {}
    if not isinstance(labels, dict):
        raise _Unusable("'accepted' is no mapping; expected benchmark labels, each with a list of domain names")
    accepted, homeless = {}, []
    for label, value in labels.items():
        if isinstance(value, dict) and set(value) <= {"homeless", "domains"}:
            if value.get("homeless") is True:
                homeless.append(label)
            value = value.get("domains") or []
        if not isinstance(value, list):
            raise _Unusable(f"accepted {label!r} is {value!r}; expected a list of domain names")
        accepted[label] = tuple(value)
    return tuple(domains), accepted, tuple(homeless)


def _problem(taxonomy: Taxonomy) -> str | None:
    """Say what makes a taxonomy unusable, or None."""
    if not taxonomy.domains:
        return "it has no domains; expected at least one"
    seen = set()
    for position, domain in enumerate(taxonomy.domains, start=1):
        name = domain.name
        if not isinstance(name, str):
            return f"the name of domain {position} is {name!r}; expected text (in YAML, put it in quotes)"
        if problem := _name_problem(name):
            return f"the name of domain {position}, {name!r}, {problem}"
        if name.casefold() in seen:
            return (
                f"the name of domain {position}, {name!r}, is there twice; expected names that differ by more than case"
            )
        seen.add(name.casefold())
        if not isinstance(domain.definition, str) or not domain.definition.strip():
            return (
                f"domain {name!r} has the definition {domain.definition!r}; expected text that says what belongs there"
            )
    for label, names in taxonomy.accepted.items():
        for name in names:
            if name not in taxonomy.names:
                return f"accepted {label!r} names the domain {name!r}; expected some of {list(taxonomy.names)}"
    for label in taxonomy.homeless:
        if label not in taxonomy.accepted:
            return (
                f"the homeless label {label!r} is not in 'accepted'; expected it there, with an empty list if need be"
            )
    return None


def _name_problem(name: str) -> str | None:
    if not name.strip() or name != name.strip():
        return "is blank or has spaces around it; expected a plain name"
    if name.casefold() == UNCLASSIFIED:
        return "is kept for memories that nothing could place; expected another name"
    if bad := [char for char in name if char in _MARKUP or not char.isprintable()]:
        return f"has {bad[0]!r} in it; expected letters, digits, spaces and plain punctuation, on one line"
    if name[0] in "-+>":
        return "starts like a list item; expected a letter or digit first"
    if len(name) > _LONGEST:
        return f"has {len(name)} characters; expected at most {_LONGEST}"
    return None
