"""Addresses of servers: brought into the form that litellm needs where that is certain, refused where it is not."""

from __future__ import annotations

import ipaddress
import os
import re
from urllib.parse import urlsplit, urlunsplit

from .errors import InputError, SetupError

# Ends that users copy from documentation along with the address; litellm adds its own.
_ENDS = ("/chat/completions", "/completions", "/embeddings", "/responses", "/models")
# Routes that speak the OpenAI interface to whatever server the address names, and the variables they read.
VARIABLES = {
    "hosted_vllm": ("HOSTED_VLLM_API_BASE",),
    "openai": ("OPENAI_BASE_URL", "OPENAI_API_BASE"),
}


def server_address(label: str, route: str, given: object) -> str:
    """The address that a model's requests go to, without the end that litellm adds; empty for the provider's own.

    An address given as an argument beats the environment. A trailing slash and a whole path such as
    ``/v1/chat/completions`` are cut; ``/v1`` is added to a bare host where every server has it: vLLM's route, and
    servers on this machine or in its network.

    Parameters
    ----------
    label : str
        The model's name, for messages.
    route : str
        litellm's name of the provider.
    given : str or None
        ``api_base`` or ``base_url`` as given by the user.

    Raises
    ------
    InputError
        If the address is none, or holds a question mark.
    SetupError
        If two environment variables name different servers.
    """
    if given:
        return tidy(label, route, given, "api_base")
    found = {name: os.environ[name] for name in VARIABLES.get(route, ()) if os.environ.get(name, "").strip()}
    tidied = {name: tidy(label, route, value, name) for name, value in found.items()}
    if len(set(tidied.values())) > 1:
        names = " and ".join(tidied)
        raise SetupError(
            f"{names} name different servers ({', '.join(map(shown, tidied.values()))}), so where {label!r} goes would "
            "be a guess: unset one of them, or give model_options={'api_base': …}, which beats both."
        )
    return next(iter(tidied.values()), "")


def tidy(label: str, route: str, value: object, source: str) -> str:
    """`server_address` for one address that comes from `source`."""
    try:
        parts = urlsplit(value.strip())
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except (ValueError, AttributeError, TypeError):
        sound = False
    if not sound:
        raise InputError(
            f"The address of {label!r} must be like 'http://HOST:PORT/v1', got {source} {_unnamed(value)!r:.100}."
        ) from None
    if route not in VARIABLES:
        return value.strip()
    if parts.query or parts.fragment:
        raise InputError(
            f"The address of {label!r} must end before '?' or '#', like 'http://HOST:PORT/v1'; {source} is "
            f"{shown(value)!r} and more. Keys go into api_key, other parameters into extra_query."
        )
    path = parts.path.rstrip("/")
    for end in _ENDS:
        path = path.removesuffix(end).rstrip("/")
    if not path and (route == "hosted_vllm" or at_home(value)):
        path = "/v1"
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))


def _unnamed(value: object) -> object:
    """What was given as an address, without what may be a name and a password in it, or a key at its end."""
    return re.sub(r"^((?:\w+:?//)?).*@", r"\1", re.split(r"[?#]", value)[0]) if isinstance(value, str) else value


def at_home(address: str) -> bool:
    """Whether an address is on this machine or in its own network."""
    host = urlsplit(address).hostname or ""
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return "." not in host or host.endswith((".localhost", ".local", ".internal"))


def on_this_machine(address: str) -> bool:
    """Whether an address is on this machine, so that nothing leaves it."""
    host = urlsplit(address).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def shown(address: str) -> str:
    """An address without what may be secret in it: user, password and everything after the path."""
    parts = urlsplit(str(address))
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
