"""Keeps keys out of messages, logs and stored records."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote

MASK = "[key hidden]"
SHORTEST = 6  # shorter values ("x", "none") are dummies, and hiding them would tear ordinary words apart

_SECRET_NAME = re.compile(r"(?:KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS?|AUTHORIZATION)$", re.IGNORECASE)
_SECRET_HEADER = re.compile(r"auth|key|token|secret|password|credential|cookie|session|signature", re.IGNORECASE)
_LOOKS_SECRET = re.compile(
    r"\b(?:sk|pk|rk|gsk|xai|hf|ghp|gho|github_pat|glpat|pplx|r8|fw|nvapi)[-_][A-Za-z0-9*_\-]{6,}"
    r"|\bAIza[0-9A-Za-z_\-]{20,}|\bAKIA[0-9A-Z]{12,}|\beyJ[\w\-]{10,}\.[\w\-]+(?:\.[\w\-]+)?"
    r"|(?<=://)[^/\s]+(?=@)"
)
_AFTER_NAME = re.compile(
    r"""(?ix)(\b(?:bearer|basic)\s+
    | \b(?:x-)?(?:(?:api[_-]?)?key|(?:access|auth)[_-]?token|secret|password|authorization)
      ["']?\s*[=:]\s*["']?(?:bearer\s+)?)
    ([A-Za-z0-9._~+/\-*]{6,}=*)"""
)


class Masker:
    """Knows the secret values of this process and replaces them in texts.

    Parameters
    ----------
    secrets : iterable of str
        Values to hide besides those of environment variables whose name ends in KEY, TOKEN, SECRET or PASSWORD.
    """

    def __init__(self, secrets: Iterable[str] = ()):
        self._given = {value for value in secrets if isinstance(value, str)}
        self._known = self._values()

    def learn(self, options: Mapping) -> None:
        """Remember the secret values in provider options, at every depth, and headers that are or look secret."""
        for name, value in options.items():
            if isinstance(value, Mapping):
                if "header" in str(name).lower():
                    for title, item in value.items():
                        self._learn_header(str(title), str(item).strip())
                self.learn(value)
            elif isinstance(value, list | tuple):
                self.learn({f"{name} {place}": item for place, item in enumerate(value)})
            elif isinstance(value, str) and _SECRET_NAME.search(str(name)):
                self._given.add(value)
        self._known = self._values()

    def _learn_header(self, title: str, value: str) -> None:
        if _SECRET_HEADER.search(title):
            self._given.update({value, *value.split()[-1:]})
        elif len(value) > 11 and re.fullmatch(r"(?=.*\d)\S+", value) and "://" not in value:
            # A plain title ("X-Title: my memory") is no secret, and hiding its words would tear answers apart.
            self._given.add(value)

    def _values(self) -> list[str]:
        # longest first: a key that holds another one is hidden whole
        from_environment = {value for name, value in os.environ.items() if _SECRET_NAME.search(name)}
        known = {value for value in self._given | from_environment if len(value) >= SHORTEST}
        written = {quote(value, safe="") for value in known} | {json.dumps(value)[1:-1] for value in known}
        return sorted(known | written, key=len, reverse=True)

    def mask(self, text: str) -> str:
        """Hide known secrets and everything that looks like one: for error texts and logs."""
        self._known = self._values()  # the environment may have changed
        return _AFTER_NAME.sub(rf"\g<1>{MASK}", _LOOKS_SECRET.sub(MASK, self.hide(text)))

    def hide(self, text: str | None) -> str | None:
        """Hide known secret values only: for a model's answer, which is data and must otherwise stay as it is."""
        if text is None:
            return None
        for value in self._known:
            if value in text:
                text = text.replace(value, MASK)
        return text
