"""Commands about stored memories: forget, shadow."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import InputError

if TYPE_CHECKING:
    from .forgetting import Found


def add_commands(command) -> None:
    """Add these commands to the command line; `command(name, do, help)` makes a parser."""
    forget = command("forget", _forget, "remove a memory from stored calls, results and books, and name what is left")
    forget.add_argument(
        "memory",
        metavar="ID|TEXT",
        help="the memory's whole text, ENTRY_ID:POSITION, or an id or source in a --book; - reads it from standard "
        "input, so that it does not stay in the shell's history",
    )
    forget.add_argument("--store", help="default: STRUCTMEM_STORE, else data/store.sqlite in the project")
    forget.add_argument(
        "--results", nargs="+", default=[], metavar="PATH", help="results files or folders (default: data/results)"
    )
    forget.add_argument("--book", action="append", default=[], metavar="PATH", help="a saved MemoryBook, repeatable")
    forget.add_argument("--entries", metavar="FILE", help="your entries, in which ENTRY_ID:POSITION is looked up")
    forget.add_argument(
        "--parts",
        action="store_true",
        help="also what holds these words inside something longer; not for one word or a few letters",
    )
    forget.add_argument(
        "--drop-rows", action="store_true", help="delete rows of results rather than their texts; rates change then"
    )
    forget.add_argument(
        "--dry-run",
        action="store_true",
        help="only say what would go, with the exit status of a real run: 0 when nothing would be left, 1 when "
        "something would be, or nothing is found",
    )
    forget.add_argument("--yes", action="store_true", help="do not ask")

    shadow = command("shadow", _shadow, "answer your own prompts under flat and under a structure, and compare")
    shadow.add_argument(
        "prompts", nargs="?", metavar="PROMPTS.jsonl", help='lines {"query": …, "memories": […]}, or "messages": […]'
    )
    shadow.add_argument("--memories", metavar="FILE", help="memories of prompts that have none of their own")
    shadow.add_argument("--user", help="whose memories, where --memories holds those of several")
    shadow.add_argument(
        "--on", metavar="DATE", help="the day on which facts in --memories must hold, such as 2026-03-31"
    )
    shadow.add_argument("--model", default="local/smollm2", help="a litellm model id (default: local/smollm2)")
    shadow.add_argument("--structure", default="tree", help="fixed, dynamic, tree, rag, … (default: tree)")
    shadow.add_argument("--structurer", default="embedding", help="who sorts, as for structmem structure")
    shadow.add_argument("--renderer", default="markdown", help="markdown, bullets, xml, inline (default: markdown)")
    shadow.add_argument(
        "--system-prompt", default="short", metavar="FILE", help="a template with {memories} (default: short, ours)"
    )
    shadow.add_argument(
        "--generations", type=int, default=1, metavar="K", help="answers per prompt and arm (default: 1)"
    )
    shadow.add_argument("--max-tokens", type=int, metavar="N", help="longest answer, in tokens")
    shadow.add_argument("--temperature", type=float, default=1.0, metavar="T", help="of the answers (default: 1.0)")
    shadow.add_argument("--budget", type=float, metavar="USD", help="stop cleanly before this run has spent it")
    shadow.add_argument("--allow-unpriced", action="store_true", help="with a budget: go on where a price is not known")
    shadow.add_argument("--store", help="default: STRUCTMEM_STORE, else data/store.sqlite in the project")
    shadow.add_argument("--sheet", metavar="SHEET.csv", help="write a blinded sheet for review, with a key beside it")
    shadow.add_argument("--seed", type=int, default=0, metavar="N", help="of random orders (default: 0)")
    shadow.add_argument(
        "--review", nargs=2, metavar=("SHEET.csv", "KEY"), help="read a scored sheet back, and ask no model"
    )


def _forget(options) -> int:
    """Exit status 0: forgotten, and nothing is left; 1: something is and was named, nothing was found, or it was not
    confirmed. The same for --dry-run."""
    from .cli import _confirmed
    from .forgetting import Place, find_memory, forget_memory, memory_text
    from .paths import is_file

    given = options.memory
    if given == "-":
        from .records import decoded

        if sys.stdin is None:
            raise InputError("standard input is closed; give the memory's id or text.")
        given = decoded(sys.stdin.buffer.read(), "standard input")
    place = Place(options.store, tuple(options.results), tuple(options.book), options.entries, options.parts)
    text = memory_text(given, place, typed=options.memory != "-")
    found = find_memory(text, place, look_through=options.dry_run)  # files that stay are named once it is forgotten
    print("Found:" if found.n else "Nothing found that was made with this memory as a whole.")
    print("\n".join([*_found(found), *_stays(found)]))
    if options.dry_run:
        print("\n".join(_remarks(found)))
        print("Nothing was changed (--dry-run).")
        return int(not found.n or bool(found.left or found.held.elsewhere))
    if found.n and not options.yes:
        if options.memory == "-" or not sys.stdin.isatty():
            raise InputError("nobody is there to confirm that this goes; look with --dry-run, then add --yes.")
        which = "this memory" if text == given else f"{text[:80]!r}"  # named by an id: shown to who is asked alone
        if not _confirmed(f"Finished calls are paid for. Forget {which}?"):
            print("Nothing was changed.")
            return 1
    left = forget_memory(found, place, options.drop_rows)
    anew = " The store's file was written anew." if is_file(found.held.path) else ""
    stays = list(_stays(left))
    print(f"\n{'Forgotten.' if found.n else 'Nothing was deleted.'}{anew}{' What is left:' if stays else ''}")
    print("\n".join([*stays, *_remarks(found)]))
    if found.n:
        print("Take it out of your entries and prompts too: a run over them would ask, pay for and store it anew.")
    return int(not found.n or bool(left.n or left.left or left.held.elsewhere))


def _found(found: Found) -> Iterator[str]:
    """What would go, in lines for a person; the memory's text is in none of these lines, here and below."""
    from .paths import is_file

    held = found.held
    if is_file(held.path):
        yield f"{held.path}: {', '.join(f'{kind} {n:,}' for kind, n in sorted(held.calls.items())) or 'nothing'}"
    else:
        yield f"There is no store here: {held.path} (another one: --store PATH)"
    if held.sent_to:
        yield f"  sent to: {', '.join(f'{model} ({n:,})' for model, n in sorted(held.sent_to.items()))}"
    yield from (f"{_short(rows.path)}: rows {rows.n:,}" for rows in found.rows)
    yield from (f"{_short(path)}: memories {n}" for path, n in found.books.items())


def _stays(found: Found) -> Iterator[str]:
    """What holds the memory, or may, and stays."""
    held = found.held
    if held.elsewhere:
        unless = "" if found.trace.is_short else ", unless --parts is given"
        yield (
            f"{held.path}: {held.elsewhere:,} more calls hold these words inside something longer, such as another "
            f"memory or a quotation; they stay{unless}."
        )
    if held.unseen:
        yield (
            f"{held.path}: {held.unseen:,} calls came from recorded files without their requests; what they were asked "
            "with cannot be known here."
        )
    if found.left:
        yield "These hold it, or could not be looked into, and are not cleaned by structmem:"
        yield from (f"  {_short(one.path)}: {one.why}" for one in found.left)


def _remarks(found: Found) -> Iterator[str]:
    """What to know of what cannot be seen from here; `found` as it was before anything was forgotten."""
    if found.books:
        yield (
            "A running process that holds the book (an assistant, a chat) writes its own copy when it next saves: "
            "stop it, or let it load the file again."
        )
    yield (
        "Looked for in the project's files, unpacked and with escapes undone; not in pictures, PDF, version history "
        "and backups, on other machines, or at providers that were sent it."
    )


def _short(path: str | os.PathLike) -> str:
    from .paths import root

    path, folder = Path(path), root().resolve()
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)


def _shadow(options) -> int:
    """Exit status 1 where an answer is missing."""
    if options.review:
        from .shadow_sheet import read_review, review_words

        print("\n".join(review_words(read_review(*options.review))))
        return 0
    if options.prompts is None:
        raise InputError("shadow needs a file of prompts (PROMPTS.jsonl), or --review SHEET.csv KEY.")
    from .llm import Client
    from .shadow import Setting, read_prompts, shadow
    from .shadow_measures import report
    from .shadow_sheet import check_name, write_sheet

    memories = None
    if options.memories:
        from .memoryfiles import load_memories

        memories = load_memories(options.memories, user=options.user, on=options.on)
    elif options.user or options.on:
        raise InputError("--user and --on say which memories to take from a file; add --memories FILE.")
    if options.sheet:
        check_name(options.sheet)
    prompts = read_prompts(options.prompts, memories)
    setting = Setting(
        options.model, options.structure, options.structurer, options.renderer, options.system_prompt,
        options.generations, options.max_tokens, options.temperature,
    )  # fmt: skip
    with Client(options.store, budget_usd=options.budget, allow_unpriced=options.allow_unpriced) as client:
        rows = shadow(prompts, setting, client, options.seed)
        spent, where = client.spent_usd, client.store.path
    print("\n".join(report(rows, setting)))
    if spent:
        print(f"Spent: {spent:.4f} USD, as far as prices are known.")
    if stopped := rows.attrs.get("stopped"):
        print(f"Stopped: {stopped}")
    if options.sheet:
        sheet, key, n = write_sheet(rows, prompts, options.structure, options.sheet, options.seed)
        print(f"\n{sheet}: {n} pairs to score in the column 'score': A, B or tie (for you only: it quotes memories).")
        print(f"{key}: which answer is whose; keep it from the person who scores, and for --review.")
    if where != ":memory:":
        print(
            f"\nCalls: {where} (prompts, memories and answers, kept for you only; `structmem forget` removes a memory)"
        )
    return int((rows["status"] != "ok").any())
