"""A step after mem0: what it remembers, laid out by domain: python examples/mem0_step.py [MODEL]

`follow` takes what mem0's `get_all` or `search` returns, of the library and of the platform. The rest runs the real
library without network or key: WordLlama embeds, and with infer=False no language model is asked what to remember.
Needs `pip install mem0ai` for that.
"""

import os
import sys
import tempfile
from importlib.util import find_spec

import chat

from structmem import Memory, MemoryBook, build_messages


def follow(book: MemoryBook, found: dict | list) -> MemoryBook:
    """Make the book hold exactly what mem0 found; memories that it has already keep their place.

    mem0 returns 20 memories unless `top_k` says otherwise, and the book would drop the others.
    """
    results = found["results"] if isinstance(found, dict) else found
    book.replace(
        Memory(m["id"], m["memory"], f"mem0:{m['id']}", m.get("updated_at") or m.get("created_at")) for m in results
    )
    return book


def local_mem0(folder: str):
    """mem0 as it comes, with its own Qdrant in a folder and an embedder on this machine."""
    os.environ["MEM0_TELEMETRY"] = "False"
    os.environ.setdefault("MEM0_DIR", folder)
    from mem0 import Memory as Mem0

    from structmem.embedding import embed

    class Local:
        def embed(self, text, memory_action=None):
            return embed([text])[0].tolist()

        def embed_batch(self, texts, memory_action=None):
            return embed(texts).tolist()

    place = {"path": f"{folder}/qdrant", "embedding_model_dims": embed(["a text"]).shape[1], "on_disk": True}
    mem0 = Mem0.from_config(
        {
            "vector_store": {"provider": "qdrant", "config": place},
            "embedder": {"provider": "openai", "config": {"api_key": "never used"}},
            "llm": {"provider": "openai", "config": {"api_key": "never used"}},
            "history_db_path": f"{folder}/history.db",
        }
    )
    mem0.embedding_model = Local()  # mem0's own embedders ask a server or fetch weights
    return mem0


def main(model: str = chat.SMOLLM2) -> None:
    """Two memories and a question."""
    with tempfile.TemporaryDirectory() as folder:
        mem0 = local_mem0(folder)
        for text in ("The user takes a tablet for blood pressure.", "The user owes 4,000 euros on a credit card."):
            mem0.add(text, user_id="robin", infer=False)
        book = follow(MemoryBook(), mem0.get_all(filters={"user_id": "robin"}, top_k=1000))
        mem0.vector_store.client.close()
    messages = build_messages("What shall I cook tonight?", book.context().text)
    print(messages[0]["content"], chat.answer(messages, model), sep="\n\n")


if __name__ == "__main__":
    if find_spec("mem0") is None:
        sys.exit("Needs: pip install mem0ai")
    main(*sys.argv[1:])
