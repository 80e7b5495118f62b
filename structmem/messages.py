"""Chat messages: prompt files, a defence, the memory context and the query, put together."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from .data import persistbench_prompts
from .errors import InputError, choice
from .paths import is_file, package_file
from .records import read_text

PLACEMENTS = ("system", "second_system", "user")
_SLOT = "{memories}"


def system_prompts() -> list[str]:
    """Names of the system prompts: the files of the package, and the benchmark's own template."""
    return sorted(["persistbench", *_packaged("systems")])


def defences() -> list[str]:
    """Names of the defences that ship with the package."""
    return sorted(_packaged("defences"))


def model_name(model_id: str) -> str:
    """The model's id without its route: what follows the first slash; for a local model, its file's bare name.

    Examples
    --------
    >>> model_name("openrouter/openai/gpt-oss-120b"), model_name("local/models/tiny.gguf"), model_name("mine")
    ('openai/gpt-oss-120b', 'tiny', 'mine')
    """
    route, slash, name = model_id.partition("/")
    if route == "local" and slash:
        # Where the file lies is nobody's business, least of all the model's.
        return re.split(r"[/\\]", name)[-1].removesuffix(".gguf")
    return name if slash else model_id


def fill(template: str, slots: Mapping[str, str], free: Mapping[str, str] | None = None) -> str:
    """Put values into a template's slots, literally and in one pass.

    A slot is a name in braces. Other braces are text, and so is all that a value brings along, slot names included.

    Parameters
    ----------
    template : str
    slots : mapping of str to str
        Slots that the template must hold exactly once.
    free : mapping of str to str, optional
        Slots that it may hold any number of times.

    Raises
    ------
    InputError
        A slot that is missing or there more than once.
    """
    values = {f"{{{name}}}": value for name, value in {**slots, **(free or {})}.items()}
    for name in slots:
        _check_slot(template, f"{{{name}}}", "the template")
    # str.format would trip over stray braces, and str.replace in turn would fill slot names that a value holds.
    pattern = "|".join(re.escape(slot) for slot in values)
    return re.sub(pattern, lambda match: values[match[0]], template) if values else template


def build_messages(
    query: str,
    context: str,
    *,
    system_prompt: str | Path = "short",
    defence: str | Path = "standard",
    placement: str = "system",
    model: str = "",
) -> list[dict]:
    """Build the messages of one request.

    Parameters
    ----------
    query : str
        The user's question, sent as it is.
    context : str
        The rendered memories. If blank, nothing is sent in its place.
    system_prompt : str or Path
        A name from `system_prompts()` or the path of a template with the slot `{memories}` exactly once.
        `{model_name}` may stand in it any number of times; nothing else is a slot.
    defence : str or Path
        A name from `defences()` or the path of a text without slots. It becomes a paragraph of its own in the first
        system message, before the line that holds `{memories}`.
    placement : {"system", "second_system", "user"}
        Where the context goes: into the slot; into a system message of its own after the first; or into the user
        message, in a `<user_memories>` block before the query. The tag gets a number if the context holds it, so
        that no memory can close the block. For the last two, the line with the slot is left out of the template.
    model : str
        The model's id as asked for, route included; the template gets `model_name(model)`.

    Returns
    -------
    list of dict
        `role` and `content` of each message; none is blank, and the last is the user's.

    Raises
    ------
    InputError
        A blank query, an unknown name (with the menu), a file with the wrong slots (with file and count), or a
        template that names the model when none is given.
    """
    if not isinstance(query, str) or not query.strip():
        raise InputError(f"query is {query!r}; expected text that is not blank.")
    if not isinstance(context, str):
        raise InputError(f"context is {context!r:.60}; expected the text that render(node) gives.")
    if placement not in PLACEMENTS:
        raise choice("placement", placement, PLACEMENTS)
    template = _with_defence(_template(system_prompt), _fragment(defence))
    if "{model_name}" in template and not model:
        raise InputError(f"system prompt {str(system_prompt)!r} names the model; expected model='...'.")
    context, name = str(context), {"model_name": model_name(model)}
    if placement == "system":
        messages = [("system", fill(template, {"memories": context}, name)), ("user", query)]
    else:
        first = ("system", fill(_without_slot_line(template), {}, name))
        if placement == "second_system":
            messages = [first, ("system", context), ("user", query)]
        else:
            messages = [first, ("user", _block(context) + query)]
    # Some providers refuse a blank message, and it would say nothing to any.
    return [{"role": role, "content": content} for role, content in messages if content.strip()]


def prompt_sha256(system_prompt: str | Path, defence: str | Path, placement: str) -> str:
    """Hash over what is used: the template's text, the defence's text and the placement."""
    if placement not in PLACEMENTS:
        raise choice("placement", placement, PLACEMENTS)
    parts = [_template(system_prompt), _fragment(defence), placement]
    return hashlib.sha256(json.dumps(parts, ensure_ascii=False).encode("utf-8")).hexdigest()


# Package files do not change while a program runs, and messages are built by the thousand; a user's own file is read
# each time, since it may be edited between two cells.
@lru_cache(maxsize=2)
def _packaged(folder: str) -> dict[str, str]:
    files = package_file("prompts", folder).glob("*.txt")
    return {path.stem: read_text(path).replace("\r\n", "\n") for path in files}


@lru_cache(maxsize=1)
def _benchmark_template() -> str:
    return persistbench_prompts()["generator"]


def _template(source: str | Path) -> str:
    text = _benchmark_template() if source == "persistbench" else _read("system_prompt", source, "systems")
    _check_slot(text, _SLOT, f"system prompt {source}")
    return text


def _fragment(source: str | Path) -> str:
    text = _read("defence", source, "defences").strip()
    for slot in (_SLOT, "{model_name}"):
        if slot in text:
            raise InputError(
                f"defence {source} holds {slot}, but a defence is text that goes into a system prompt and has no slots;"
                " pass a whole template as system_prompt."
            )
    return text


def _read(kind: str, source: str | Path, folder: str) -> str:
    """Text of a package file or of a user's file, with plain line ends."""
    packaged = _packaged(folder)
    if isinstance(source, str) and source in packaged:
        return packaged[source]
    if not isinstance(source, str | Path) or not is_file(source):
        menu = system_prompts() if folder == "systems" else defences()
        raise InputError(f"{kind} must be one of {menu} or the path of a file, got {str(source)!r:.200}.")
    return read_text(source).replace("\r\n", "\n")


def _check_slot(text: str, slot: str, where: str) -> None:
    if (count := text.count(slot)) != 1:
        raise InputError(f"{where} holds {slot} {count} times; expected it exactly once.")


def _with_defence(template: str, fragment: str) -> str:
    if not fragment:
        return template
    start = template.rfind("\n", 0, template.index(_SLOT)) + 1
    before = template[:start].rstrip("\n")
    return f"{before}\n\n{fragment}\n\n{template[start:]}" if before else f"{fragment}\n\n{template[start:]}"


def _without_slot_line(template: str) -> str:
    slot = template.index(_SLOT)
    start = template.rfind("\n", 0, slot) + 1
    end = template.find("\n", slot)
    before, after = template[:start].rstrip(), template[end:].strip() if end >= 0 else ""
    return f"{before}\n\n{after}" if before and after else before or after


def _block(context: str) -> str:
    if not context.strip():
        return ""
    tag, number = "user_memories", 1
    while tag in context.casefold():
        number += 1
        tag = f"user_memories_{number}"
    return f"<{tag}>\n{context}\n</{tag}>\n\n"
