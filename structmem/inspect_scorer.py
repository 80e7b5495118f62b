"""The benchmark's own judge scorer for Inspect AI, loaded from the installed inspect-evals."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from functools import cache
from threading import Lock
from types import ModuleType

from .errors import SetupError

_SCORERS = "inspect_evals.persistbench.scorers"
_PARTS = ("inspect_evals.persistbench", "inspect_evals.utils")
_ONE_AT_A_TIME = Lock()  # the modules of the whole process are changed for a moment


@cache
def persistbench_scorers() -> ModuleType:
    """The installed module ``inspect_evals.persistbench.scorers``, with its `persistbench_judge` and `failure_rate`.

    It is imported as usual. Where that fails because something is missing that only the rest of inspect-evals needs
    (its wheel may be installed without its dependencies), the module's own files are run all the same: ``scorers.py``
    and the ``prompts.py``, ``dataset.py`` and ``utils.py`` that it imports, from the installed package and unchanged;
    only the ``__init__`` files of ``inspect_evals.persistbench`` and ``inspect_evals.utils`` are passed over.

    Raises
    ------
    SetupError
        inspect-evals is not installed, or its scorers cannot be loaded in either way.
    """
    try:
        return importlib.import_module(_SCORERS)
    except ImportError:
        with _ONE_AT_A_TIME:
            return _without_packages()


def _without_packages() -> ModuleType:
    found = importlib.util.find_spec("inspect_evals")
    if found is None:
        raise SetupError(
            "PersistBench's scorers are read from inspect-evals, which is not installed; install it with "
            "'pip install --no-deps inspect-evals==0.28.0' or 'structmem local install'."
        )
    package, utils = (ModuleType(name) for name in _PARTS)
    package.__path__ = [f"{folder}/persistbench" for folder in found.submodule_search_locations]
    # dataset.py imports this name for ids of its own samples, which our tasks do not use.
    utils.create_stable_id = None
    before = _take_out()
    sys.modules.update(zip(_PARTS, (package, utils), strict=True))
    try:
        return importlib.import_module(_SCORERS)
    except ImportError as error:
        raise SetupError(
            f"PersistBench's scorers cannot be loaded from the installed inspect-evals ({error}); expected version "
            "0.28.0: pip install --no-deps inspect-evals==0.28.0"
        ) from error
    finally:
        # Whoever imports the real package later, in the same process, gets the real one or its own error.
        _take_out()
        sys.modules.update(before)


def _take_out() -> dict[str, ModuleType]:
    names = [name for name in sys.modules if name in _PARTS or name.startswith(tuple(f"{part}." for part in _PARTS))]
    return {name: sys.modules.pop(name) for name in names}
