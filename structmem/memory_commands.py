"""Commands about stored memories: forget, shadow."""

from __future__ import annotations

import sys

from .errors import InputError


def add_commands(command) -> None:
    """Add these commands to the command line; `command(name, do, help)` makes a parser."""
    forget = command("forget", _forget, "remove a memory from stored calls, results and books, and name what is left")
    forget.add_argument(
        "memory",
        metavar="ID|TEXT",
        help="the memory's whole text, ENTRY_ID:POSITION, or an id in a --book; - reads it from standard input, so "
        "that it does not stay in the shell's history",
    )
    forget.add_argument("--store", help="default: STRUCTMEM_STORE, else data/store.sqlite in the project")
    forget.add_argument(
        "--results", nargs="+", default=[], metavar="PATH", help="results files or folders (default: data/results)"
    )
    forget.add_argument("--book", action="append", default=[], metavar="PATH", help="a saved MemoryBook, repeatable")
    forget.add_argument("--entries", metavar="FILE", help="your entries, in which ENTRY_ID:POSITION is looked up")
    forget.add_argument("--parts", action="store_true", help="also what holds these words inside something longer")
    forget.add_argument(
        "--drop-rows", action="store_true", help="delete rows of results rather than their texts; rates change then"
    )
    forget.add_argument("--dry-run", action="store_true", help="only say what would go")
    forget.add_argument("--yes", action="store_true", help="do not ask")

    shadow = command("shadow", _shadow, "answer your own prompts under flat and under a structure, and compare")
    shadow.add_argument(
        "prompts", nargs="?", metavar="PROMPTS.jsonl", help='lines {"query": …, "memories": […]}, or "messages": […]'
    )
    shadow.add_argument("--memories", metavar="FILE", help="memories of prompts that have none of their own")
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
    """Exit status 0: nothing is left; 1: something is, and was named, or it was not confirmed."""
    from .cli import _confirmed
    from .forgetting import Place, find_memory, forget_memory, memory_text, said
    from .paths import is_file

    given = options.memory
    if given == "-":
        from .records import decoded

        if sys.stdin is None:
            raise InputError("standard input is closed; give the memory's id or text.")
        given = decoded(sys.stdin.buffer.read(), "standard input")
    place = Place(options.store, tuple(options.results), tuple(options.book), options.entries, options.parts)
    text = memory_text(given, place)
    found = find_memory(text, place, look_through=options.dry_run)  # files that stay are named once it is forgotten
    print("Found:" if found.n else "Nothing found that was made with this memory as a whole.")
    print("\n".join(said(found)))
    if options.dry_run:
        print("Nothing was changed (--dry-run).")
        return 0
    if found.n and not options.yes:
        if options.memory == "-" or not sys.stdin.isatty():
            raise InputError("nobody is there to confirm that this goes; look with --dry-run, then add --yes.")
        which = "this memory" if text == given else f"{text[:80]!r}"  # named by an id: shown to who is asked alone
        if not _confirmed(f"Finished calls are paid for. Forget {which}?"):
            print("Nothing was changed.")
            return 1
    left = forget_memory(found, place, options.drop_rows)
    anew = " The store's file was written anew." if is_file(found.held.path) else ""
    print(f"\n{'Forgotten.' if found.n else 'Nothing was deleted.'}{anew} What is left:")
    print("\n".join(said(left, forgotten=True)))
    return 1 if left.n or left.left or left.held.elsewhere else 0


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

        memories = load_memories(options.memories)
    if options.sheet:
        check_name(options.sheet)
    prompts = read_prompts(options.prompts, memories)
    setting = Setting(
        options.model, options.structure, options.structurer, options.renderer, options.system_prompt,
        options.generations, options.max_tokens, options.temperature,
    )  # fmt: skip
    with Client(options.store, budget_usd=options.budget, allow_unpriced=options.allow_unpriced) as client:
        rows = shadow(prompts, setting, client, options.seed)
        spent = client.spent_usd
    print("\n".join(report(rows, setting)))
    if spent:
        print(f"Spent: {spent:.4f} USD, as far as prices are known.")
    if stopped := rows.attrs.get("stopped"):
        print(f"Stopped: {stopped}")
    if options.sheet:
        sheet, key, n = write_sheet(rows, prompts, options.structure, options.sheet, options.seed)
        print(f"\n{sheet}: {n} pairs to score in the column 'score': A, B or tie (for you only: it quotes memories).")
        print(f"{key}: which answer is whose; keep it from the person who scores, and for --review.")
    return int((rows["status"] != "ok").any())
