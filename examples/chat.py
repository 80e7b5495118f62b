"""A chat that remembers: python examples/chat.py [MODEL] [BOOK.json]

MODEL is any litellm id, with its key in the environment; without one the built-in model answers, offline.
`+ TEXT` remembers, `- ID or TEXT` forgets, `?` shows what the model is shown, and ids; anything else is a question.
"""

import sys
from pathlib import Path

import openai

from structmem import MemoryBook, build_messages
from structmem.errors import StructmemError
from structmem.local import SMOLLM2, endpoint
from structmem.transport import load_litellm


def answer(messages, model=SMOLLM2, max_tokens=300):
    """A model's answer; `local/…` runs on this machine, and litellm reaches it as hosted_vllm."""
    server, litellm = {}, load_litellm()  # quiet, and without its price list from the network
    if model.startswith("local/"):
        model, server = f"hosted_vllm/{endpoint(model).model}", {"api_base": endpoint(model).api_base, "api_key": "-"}
    return litellm.completion(model, messages, max_tokens=max_tokens, **server).choices[0].message.content


def chat(model=SMOLLM2, path="book.json"):
    """Read lines until the input ends."""
    book, turns = MemoryBook.load(path) if Path(path).exists() else MemoryBook(), []
    while True:
        try:
            line = input("> " if sys.stdin.isatty() else "").strip()
            if line.startswith("+"):
                print("remembered as", book.add_memory(line[1:].strip(), source="chat").id)
            elif line.startswith("-"):
                print("forgot", len(book.remove(line[1:].strip())))
            elif line == "?":
                print(book.context(), *(f"{m.id}: {m.text}" for m in book.memories), sep="\n")
            elif line:
                system, question = build_messages(line, book.context().text)
                said = answer([system, *turns, question], model)
                turns += [question, {"role": "assistant", "content": said}]
                print(said)
            book.save(path)
        except (EOFError, KeyboardInterrupt):
            return
        except (StructmemError, openai.OpenAIError) as error:  # litellm raises the latter
            print(str(error).splitlines()[0])


if __name__ == "__main__":
    try:
        chat(*sys.argv[1:])
    except StructmemError as error:  # of a file that is no book
        sys.exit(str(error))
