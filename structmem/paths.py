"""Where things lie: package data, the project's folders, recorded calls and the default store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import InputError, SetupError

PACKAGE = Path(__file__).resolve().parent


def package_file(*parts: str) -> Path:
    """Path of a file that ships inside the package."""
    return PACKAGE.joinpath(*parts)


def is_file(path: str | os.PathLike) -> bool:
    """Whether a file of that name is there; a text that can be no name (too long, a null character) names none."""
    try:
        return Path(path).is_file()
    except (OSError, ValueError):
        return False


def is_dir(path: str | os.PathLike) -> bool:
    """As `is_file`, for a folder."""
    try:
        return Path(path).is_dir()
    except (OSError, ValueError):
        return False


def real(path: str | os.PathLike) -> str:
    """The absolute path that a name leads to, links followed; what can be no name stays as it is."""
    try:
        return os.path.realpath(path)
    except ValueError:
        return str(Path(path).absolute())


def root() -> Path:
    """The project folder: the nearest folder at or above the working directory that holds ``data/recorded``.

    Outside a project it is the working directory itself, so that a user's results land where they work.
    """
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "data" / "recorded").is_dir():
            return folder
    return here


def shared(name: str) -> Path:
    """What lives at the top of a checkout and inside an installed wheel, such as ``notebooks`` or ``data/recorded``.

    Raises
    ------
    SetupError
        If neither place holds it.
    """
    for place in (root() / name, PACKAGE.parent / name, PACKAGE / "share" / name):
        if place.exists():
            return place
    raise SetupError(f"'{name}' was found neither in {root()} nor in the installed package; reinstall structmem.")


def in_project(path: str | os.PathLike) -> Path:
    """A path as notebooks mean it: relative ones count from the project folder, wherever the notebook runs."""
    return root() / Path(path).expanduser()


@contextmanager
def writing(folder: Path, name: str) -> Iterator[Path]:
    """The path of a file to write, in a folder that is made if missing; what the system refuses is said in a sentence.

    Raises
    ------
    InputError
        With the name and the system's reason.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder / name
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{name:.80}: cannot be written in the folder {folder.name!r} ({reason}).") from error


def recorded() -> Path:
    """The folder of recorded calls that committed notebooks replay."""
    return shared("data/recorded")


def default_store() -> Path:
    """Where calls are stored unless said otherwise: ``STRUCTMEM_STORE``, else ``data/store.sqlite`` in the project."""
    if said := os.environ.get("STRUCTMEM_STORE"):
        return Path(said).expanduser().absolute()
    return root() / "data" / "store.sqlite"
