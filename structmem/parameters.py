"""Parameters of notebooks: declared by one cell, given as text or injected by papermill, checked before use."""

from __future__ import annotations

import ast
import difflib
import json
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .errors import InputError

_TRUE, _FALSE = ("true", "yes", "1"), ("false", "no", "0")


@dataclass(frozen=True)
class Parameter:
    """One line of a ``parameters`` cell: name, annotation as written, default."""

    name: str
    annotation: str
    default: object

    def fits(self, value: object) -> bool:
        """Whether a Python value has the declared type (a bool is no int, an int is a float, nan and inf are none)."""
        return _fits(value, ast.parse(self.annotation, mode="eval").body)

    def read(self, text: str) -> object:
        """The value that a text from the command line stands for.

        Text stays text for ``str`` (``007`` keeps its zeros); lists and dicts are JSON; ``none`` where None is allowed.

        Raises
        ------
        InputError
            If the text is no value of the declared type.
        """
        for value in _readings(text, self.annotation):
            if self.fits(value):
                return value
        raise self.refusal(text)

    def refusal(self, value: object) -> InputError:
        """The error for a value of the wrong type."""
        hint = ' (a list is JSON, such as ["flat", "tree"])' if "list" in self.annotation else ""
        return InputError(f"parameter {self.name} must be {self.annotation}{hint}, got {value!r}.")


def _fits(value: object, annotation: ast.expr) -> bool:
    if isinstance(annotation, ast.BinOp):
        return _fits(value, annotation.left) or _fits(value, annotation.right)
    if isinstance(annotation, ast.Constant):
        return value is annotation.value
    if isinstance(annotation, ast.Subscript):
        inner = annotation.slice
        if not _fits(value, annotation.value):
            return False
        return all(_fits(item, inner) for item in value) if isinstance(value, list) else True
    name = ast.unparse(annotation)
    if name == "float":
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if name == "int":
        return isinstance(value, int) and not isinstance(value, bool)
    return type(value).__name__ == name


def _readings(text: str, annotation: str) -> Iterable[object]:
    """Values a text may stand for, most literal types last: only one that fits the annotation is taken."""
    low = text.strip().lower()
    if low == "none":
        yield None
    if low in _TRUE + _FALSE and "bool" in annotation:
        yield low in _TRUE
    for read in (int, float, json.loads):
        try:
            yield read(text)
        except ValueError:
            continue
    yield text


def declared(cell: str) -> dict[str, Parameter]:
    """The parameters that a ``parameters`` cell declares: plain annotations, literal values, nothing else.

    Raises
    ------
    InputError
        If a line is anything but ``name: type = literal``.
    """
    found = {}
    for line in ast.parse(cell).body:
        text = ast.unparse(line)
        if not (isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and line.value is not None):
            raise InputError(f"parameters cell: {text!r} is not of the form `name: type = value`.")
        try:
            value = ast.literal_eval(line.value)
        except ValueError:
            raise InputError(f"parameters cell: the value in {text!r} is not a literal.") from None
        parameter = Parameter(line.target.id, ast.unparse(line.annotation), value)
        if not parameter.fits(value):
            raise parameter.refusal(value)
        found[parameter.name] = parameter
    return found


def assigned(cell: str) -> dict[str, object]:
    """Names and values that an injected cell assigns.

    Raises
    ------
    InputError
        If a value is not a literal (papermill writes nan and inf as calls of ``float``).
    """
    lines = [line for line in ast.parse(cell).body if isinstance(line, ast.Assign)]
    try:
        named = [line for line in lines if isinstance(line.targets[0], ast.Name)]
        return {line.targets[0].id: ast.literal_eval(line.value) for line in named}
    except ValueError:
        raise InputError(f"injected parameters must be plain values, got {cell!r:.200}.") from None


def check_values(parameters: Mapping[str, Parameter], values: Mapping[str, object]) -> None:
    """Refuse values whose name is not declared or whose type is another.

    Raises
    ------
    InputError
        With the nearest declared name, or the declared type.
    """
    for name, value in values.items():
        if name not in parameters:
            near = difflib.get_close_matches(name, parameters, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise InputError(f"there is no parameter {name!r} among {sorted(parameters)}{hint}")
        if not parameters[name].fits(value):
            raise parameters[name].refusal(value)


def check_parameters() -> None:
    """Check the parameters of the running notebook; the cell after the ``parameters`` cell calls it.

    Papermill only logs a name that it does not know. The cells that ran are in IPython's history, so that a misspelled
    or wrongly typed parameter ends the run here. nbval keeps no history, and injects nothing: there the values are held
    against the annotations that Python keeps. Outside IPython there is nothing to check.

    Raises
    ------
    InputError
        If a parameter is unknown or of the wrong type, or the ``parameters`` cell was not run.
    """
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)
    shell = get_ipython()
    history = [cell for cell in (shell.user_ns.get("In", []) if shell else [])[:-1] if cell.strip()]
    if not history:
        kept = shell.user_ns.get("__annotations__", {}) if shell else {}
        texts = {name: kind.__name__ if type(kind) is type else str(kind) for name, kind in kept.items()}
        values = {name: shell.user_ns[name] for name in texts if name in shell.user_ns}
        check_values({name: Parameter(name, text, None) for name, text in texts.items()}, values)
        return
    places = [place for place, cell in enumerate(history) if _declares(cell)]
    if not places:
        raise InputError("the parameters cell was not run; run it first, then this cell.")
    if any(is_injected(cell) for cell in history[: places[0]]):
        raise InputError(
            "parameters were injected before the parameters cell, whose defaults then replaced them; "
            "give that cell the tag 'parameters'."
        )
    parameters = declared(history[places[-1]])
    for cell in history[places[-1] + 1 :]:
        if is_injected(cell):
            check_values(parameters, assigned(cell))
    check_values(parameters, {name: shell.user_ns[name] for name in parameters if name in shell.user_ns})


def _declares(cell: str) -> bool:
    try:
        lines = ast.parse(cell).body
    except SyntaxError:  # a cell with IPython's own syntax
        return False
    only = all(isinstance(line, (ast.AnnAssign, ast.Assign)) for line in lines)
    return only and any(isinstance(line, ast.AnnAssign) for line in lines)


def is_injected(cell: str) -> bool:
    return cell.lstrip().lower().startswith("# parameters")
