"""Arms: the ways of laying out and presenting memories that the settings of a run make."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .calls import canonical, model_label
from .errors import InputError, choice
from .registry import checked_options
from .renderers import RENDERERS
from .sorters import by_embedding, offline_embedder
from .structures import option_defaults, spec
from .taxonomy import Taxonomy, load_taxonomy

BASELINE = "flat"
SELF = "self"  # each answering model sorts for itself
_CLIENT_OPTIONS = ("extra_body", "api_base", "base_url", "api_key", "api_version", "timeout", "headers", "organization")


@dataclass(frozen=True)
class Arm:
    """One way of laying out and presenting the memories, and which rerun of it.

    Parameters
    ----------
    structure, renderer, placement, defence : str
    structurer : str
        Label of who sorts; empty where nobody does.
    options : str
        Canonical JSON of every option of the structure and its structurer.
    taxonomy : Taxonomy or None
    partition_draw, replicate : int
    sorter : str or callable or None
        The structurer itself; 'self': the answering model.
    sorter_options : mapping
        How it is reached (address, extra body).
    given : mapping
        The options of structure and structurer that were asked for, as `options` holds them.
    """

    structure: str
    structurer: str
    options: str
    taxonomy: Taxonomy | None
    partition_draw: int
    renderer: str
    placement: str
    defence: str
    replicate: int
    sorter: object = None
    sorter_options: Mapping | None = None
    given: Mapping = field(default_factory=dict)


def many(value: object, what: str) -> tuple:
    """One value or several, as a tuple without repeats.

    Raises
    ------
    InputError
        If there is none, or one is there twice.
    """
    single = isinstance(value, (str, Path, int, Taxonomy, Mapping)) or callable(value)
    values = (value,) if single else tuple(value or ())
    if not values:
        raise InputError(f"{what} is empty; expected at least one.")
    twice = [key for key, count in Counter(map(_identity, values)).items() if count > 1]
    if twice:
        raise InputError(f"{what} has {twice[0]!r} twice; expected each once (replicates=2 repeats a whole arm).")
    return values


def _identity(value: object) -> str:
    return value.name if isinstance(value, Taxonomy) else str(value)


def whole(value: object, what: str, low: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise InputError(f"{what} must be a whole number of at least {low}, got {value!r}.")
    return value


def make_arms(
    structures, structurers, taxonomies, draws, random_draws, renderers, placements, defences, replicates, aa,
    structurer_options,
) -> tuple[Arm, ...]:  # fmt: skip
    whole(replicates, "replicates", 1)
    whole(random_draws, "random_draws", 1)
    for draw in draws:
        whole(draw, "partition_draws", 0)
    for renderer in renderers:
        if renderer not in RENDERERS:
            raise choice("renderer", renderer, RENDERERS)
    loaded = [load_taxonomy(taxonomy) for taxonomy in taxonomies]
    many([taxonomy.name for taxonomy in loaded], "taxonomies")  # results tell them apart by name
    for structure in structures:
        spec(structure)
    if aa and BASELINE not in structures:
        structures = (BASELINE, *structures)
    options, reach = _structurer_options(structures, structurer_options)
    layouts = []
    for structure in structures:
        for sorter, taxonomy, draw in _sortings(
            structure, structurers, loaded, draws, random_draws, options[structure]
        ):
            who = "" if sorter is None else sorter if by_embedding(sorter) or sorter == SELF else model_label(sorter)
            given = _resolved(structure, sorter, options[structure])
            named = {name: short_name(value) if name == "labels" else value for name, value in given.items()}
            text = canonical(named) if named else ""
            how = {} if offline_embedder(sorter) or sorter == SELF else reach
            layouts.append((structure, who, text, taxonomy, draw, sorter, how, given))
    found = []
    for renderer in renderers:
        for placement in placements:
            for defence in defences:
                for structure, who, text, taxonomy, draw, *sorting in layouts:
                    runs = max(replicates, 2) if aa and structure == BASELINE else replicates
                    for replicate in range(runs):
                        how = (renderer, placement, defence, replicate)
                        found.append(Arm(structure, who, text, taxonomy, draw, *how, *sorting))
    _check_names(found)
    return tuple(found)


def _check_names(arms: Sequence[Arm]) -> None:
    """Results tell arms apart by name, so two files or functions of one name would be mixed up there."""
    names = [
        (arm.structure, arm.structurer, arm.options, arm.renderer, arm.placement, short_name(arm.defence))
        + (arm.taxonomy and arm.taxonomy.name, arm.partition_draw, arm.replicate)
        for arm in arms
    ]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise InputError(
            f"two arms have one name in the results ({', '.join(map(str, filter(None, twice[0])))}); rename one of the "
            "files, or give functions a model_id of their own."
        )


def settings_of(arm: Arm) -> dict[str, object]:
    """What tells an arm from another but its replicate, by the names of the results table's columns."""
    return {
        "structure": arm.structure,
        "structurer": arm.structurer,
        "structurer_options": arm.options,
        "taxonomy": arm.taxonomy.name if arm.taxonomy else "",
        "taxonomy_hash": arm.taxonomy.sha256 if arm.taxonomy else None,
        "partition_draw": arm.partition_draw,
        "renderer": arm.renderer,
        "placement": arm.placement,
        "defence": short_name(arm.defence),
    }


def short_name(source: object) -> str:
    """A file's bare name, or the name as it is: results never hold a path."""
    text = str(source)
    return Path(text).stem if isinstance(source, Path) or "/" in text or "\\" in text else text


def _sortings(structure: str, structurers, taxonomies, draws, random_draws: int, options: Mapping):
    """Who sorts, into what, which draw; only where it makes a difference."""
    found = spec(structure)
    if not found.uses_structurer:
        structurers, taxonomies = (None,), (None,)
    elif found.structurer:  # one that embeds, or the answering model: not one that sorts into domains
        structurers, taxonomies = (options.get("structurer", found.structurer),), (None,)
    elif found.taxonomy:
        taxonomies = (load_taxonomy(found.taxonomy),)
    for sorter in structurers:
        for taxonomy in taxonomies:
            if found.random:
                mine = range(random_draws)
            elif sorter is None or structure == "rag":
                mine = (0,)
            else:  # an embedding structurer sorts the same way every time: a second draw would be the first one again
                mine = draws[:1] if by_embedding(sorter) else draws
            for draw in mine:
                yield sorter, taxonomy, draw


def _structurer_options(structures: Sequence[str], given: Mapping) -> tuple[dict[str, dict], dict]:
    """Options per structure, and how structurer models are reached.

    `given` is either one dict for all structures (each takes the options it knows) or a dict per structure name.
    """
    reach = {name: value for name, value in given.items() if name in _CLIENT_OPTIONS}
    rest = {name: value for name, value in given.items() if name not in reach}
    by_name = {name: dict(value) for name, value in rest.items() if name in structures and isinstance(value, Mapping)}
    shared = {name: value for name, value in rest.items() if name not in by_name}
    known: dict[str, set] = {}
    for structure in structures:
        known[structure] = set(option_defaults(structure, "embedding")) | set(option_defaults(structure, "a model"))
        known[structure] |= {"structurer"} if spec(structure).structurer else set()
    menu = set().union(*known.values())
    for name in shared:
        if name not in menu:
            raise choice("an option in structurer_options", name, menu | set(_CLIENT_OPTIONS))
    for structure, options in by_name.items():
        for name in options:
            if name not in known[structure]:
                raise choice(f"an option in structurer_options for {structure!r}", name, known[structure])
    found = {
        structure: {k: v for k, v in shared.items() if k in known[structure]} | by_name.get(structure, {})
        for structure in structures
    }
    return found, reach


def _resolved(structure: str, sorter: object, options: Mapping) -> dict:
    """Every option of a structure under a structurer, defaults included; options of another structurer are left out."""
    if structure == "self_check" and by_embedding(sorter):
        raise InputError(
            f"structure 'self_check' asks a model which memories matter, and {sorter!r} is none; name a model, or "
            "leave its structurer out for the answering one. 'rag' selects by embedding."
        )
    if structure == "rag" and sorter == SELF:
        raise InputError(
            "structure 'rag' embeds the memories, which an answering model does not; name an embedding model."
        )
    who = "embedding" if sorter is None else sorter if by_embedding(sorter) else "a model"
    menu = option_defaults(structure, who)
    return checked_options(structure, who, {name: value for name, value in options.items() if name in menu})
