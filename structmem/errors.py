"""Errors of the package: each message says where, what was found, what was expected and what to do."""

from __future__ import annotations

import threading
from collections.abc import Iterable

# Held while a large library is imported and set up: both change the process's filters for warnings, and undo it.
IMPORTING = threading.Lock()


class StructmemError(Exception):
    """Base of every error that structmem raises on purpose."""


class InputError(StructmemError, ValueError):
    """An argument or a data file is not what the function takes."""


class MissingCall(StructmemError, LookupError):
    """Offline, and the store does not hold the call that is needed."""


class BudgetReached(StructmemError):
    """The budget is spent, or a price is unknown; finished calls are kept."""


class SetupError(StructmemError, RuntimeError):
    """An extra, a key, a system library or a file is missing on this machine."""


class SortingFailed(StructmemError, RuntimeError):
    """The structurer could not be reached (error or timeout): no partition, and nothing is known of the memories."""


class StoreError(StructmemError, RuntimeError):
    """The store of calls cannot be opened, read or written."""


def choice(kind: str, value: object, menu: Iterable[str]) -> InputError:
    """Build the error for a value that is not on the menu.

    Examples
    --------
    >>> str(choice("structure", "tre", ["flat", "tree"]))
    "structure must be one of ['flat', 'tree'], got 'tre'."
    """
    return InputError(f"{kind} must be one of {sorted(menu)}, got {value!r}.")
