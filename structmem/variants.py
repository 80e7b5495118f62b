"""Variants: one grid run under several settings, such as structurer options or thresholds, as one results table."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from itertools import product

import pandas as pd

from .arms import many
from .data import Entry
from .errors import InputError, choice
from .experiment import run
from .grid import make_grid
from .llm import Client
from .results import merge_results

_RUN = {name: p.default for name, p in inspect.signature(run).parameters.items() if name != "entries"}
_GRID = tuple(inspect.signature(make_grid).parameters)
# One client serves every variant, so that a budget is one budget and calls are counted once.
_CLIENT = tuple(name for name in inspect.signature(Client).parameters if name in _RUN)


def run_each(entries: Iterable[Entry], variants: Mapping[str, Mapping], **grid) -> pd.DataFrame:
    """Run a grid once for each variant and join the results.

    What several variants have in common, such as the flat baseline, is asked once and stands in the results once.

    Parameters
    ----------
    entries : iterable of Entry
    variants : mapping of str to mapping
        Name of a variant to the settings of `run` that differ in it, for example
        ``{"plain": {}, "k = 2": {"structurer_options": {"rag": {"threshold": None, "top_k": 2}}}}``. The names are
        for error messages; in the results arms are told apart by their settings.
    **grid
        Settings of `run` that all variants share, store, budget and client among them.

    Returns
    -------
    DataFrame
        As `run` returns it; ``attrs["parameters"]`` lists those of the variants, ``attrs["stopped"]`` says of each
        variant that did not finish why, ``attrs["calls"]`` counts the calls of all.

    Raises
    ------
    InputError
        For no variant, a setting that `run` does not have, one that belongs to the client (it is shared), and
        whatever `run` refuses, in any variant and before any call; also where two variants differ in a setting that
        the row key does not hold, such as the temperature of the answers, so that their rows could not be told apart.
    MissingCall, SetupError, StoreError
        As `run`.
    """
    entries = tuple(entries)
    if not isinstance(variants, Mapping) or not variants:
        raise InputError(f"variants must be a mapping of names to settings of run, at least one, got {variants!r:.80}.")
    settings = {name: _settings(name, variant, grid) for name, variant in variants.items()}
    for name, chosen in settings.items():
        try:
            make_grid(entries, **{key: value for key, value in (_RUN | chosen).items() if key in _GRID})
        except InputError as error:
            raise InputError(f"variant {name!r}: {error}") from None
    own = grid.get("client") is None
    client = Client(**{name: grid[name] for name in _CLIENT if name in grid}) if own else grid["client"]
    merged, stopped = None, []
    try:
        for name, chosen in settings.items():
            found = run(entries, **chosen | {"client": client})
            if why := found.attrs.get("stopped"):
                stopped.append(f"{name}: {why}")
            calls = found.attrs["calls"]
            merged = found if merged is None else _joined(merged, found, name)
    finally:
        if own:
            client.close()
    merged.attrs["calls"] = calls
    merged.attrs |= {"stopped": " ".join(stopped)} if stopped else {}
    return merged


def _settings(name: str, variant: Mapping, grid: Mapping) -> dict:
    if not isinstance(variant, Mapping):
        raise InputError(f"variant {name!r} must be a mapping of settings of run, got {variant!r:.80}.")
    if shared := [setting for setting in variant if setting in (*_CLIENT, "client", "entries")]:
        raise InputError(f"variant {name!r} sets {shared[0]!r}, which all variants share; give it to run_each itself.")
    if unknown := [setting for setting in (*grid, *variant) if setting not in _RUN]:
        raise choice("a setting of run", unknown[0], sorted(_RUN))
    return {**grid, **variant}


def _joined(before: pd.DataFrame, found: pd.DataFrame, name: str) -> pd.DataFrame:
    try:
        return merge_results(before, found)
    except InputError as error:
        raise InputError(
            f"variant {name!r} cannot be told apart from one before it: {error} Variants may differ in what makes an "
            "arm (structure, structurer_options, renderer, …); run others by themselves."
        ) from None


def vary(shared: Mapping | None = None, **levels: Sequence) -> dict[str, dict]:
    """Every combination of some settings, by a name that says what differs.

    Parameters
    ----------
    shared : mapping, optional
        Settings that all have.
    **levels : sequence
        A setting and its values.

    Returns
    -------
    dict of str to dict

    Raises
    ------
    InputError
        For a setting without values, or with the same value twice.

    Examples
    --------
    >>> vary({"structurer": "local/smollm2"}, wording=[0, 1], partition_draw=[0])
    {'wording 0': {'structurer': 'local/smollm2', 'wording': 0, 'partition_draw': 0},
     'wording 1': {'structurer': 'local/smollm2', 'wording': 1, 'partition_draw': 0}}
    """
    values = {name: many(given, name) for name, given in levels.items()}
    told = [name for name, given in values.items() if len(given) > 1] or list(values)
    found = {}
    for chosen in product(*values.values()):
        one = dict(zip(values, chosen, strict=True))
        found[", ".join(_words(name, one[name]) for name in told)] = {**(shared or {}), **one}
    return found


def _words(name: str, value: object) -> str:
    """A text says by itself what it is; a number needs the setting's name."""
    if isinstance(value, str):
        return value
    return f"{'draw' if name == 'partition_draw' else name.replace('_', ' ')} {value}"


def run_settings(sorters: Mapping[str, Mapping]) -> dict[str, dict]:
    """Variants for `run_each` from the settings of sorters, as `sort_each` takes them.

    Parameters
    ----------
    sorters : mapping of str to mapping
        ``structurer``, ``taxonomy``, ``partition_draw`` and options of the structurer, all optional.

    Returns
    -------
    dict of str to dict
        ``structurers``, ``taxonomies``, ``partition_draws`` and ``structurer_options`` where they are given.
    """
    factors = {"structurer": "structurers", "taxonomy": "taxonomies", "partition_draw": "partition_draws"}
    found = {}
    for name, settings in sorters.items():
        found[name] = {plural: [settings[one]] for one, plural in factors.items() if one in settings}
        if options := {option: value for option, value in settings.items() if option not in factors}:
            found[name]["structurer_options"] = options
    return found
