"""Memories as a file or standard input brings them: a JSON list of texts, or one memory a line."""

from __future__ import annotations

import json
import re
import sys

from .errors import InputError
from .records import decoded, read_text


def read_memories(file: str) -> list[str]:
    """Memory texts of a file: a JSON list of strings, or one memory a line (blank lines are passed over).

    Raises
    ------
    InputError
        If the file cannot be read, is no text, or its JSON is no list of strings.
    """
    if file == "-" and sys.stdin is None:
        raise InputError("standard input is closed; name a file.")
    text = decoded(sys.stdin.buffer.read(), "standard input") if file == "-" else read_text(file)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        # "[2024] moved to Oslo" is a line; what begins as a list or an object of JSON does is a broken file.
        if re.match(r'\s*(?:\[\s*["\[{]|\[\s*$|\{\s*["}])', text):
            raise InputError(f"{file} looks like JSON but is none ({error}); expected a list of strings.") from None
        return [line.strip() for line in text.split("\n") if line.strip()]
    if isinstance(found, int | float | None) and not text.lstrip().startswith(("[", "{")):  # a line such as 1984
        return [line.strip() for line in text.split("\n") if line.strip()]
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise InputError(f"{file}: expected a JSON list of strings, got something else.")
    return found
