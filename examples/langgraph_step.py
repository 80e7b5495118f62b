"""A LangGraph node that lays out a user's memories: python examples/langgraph_step.py [MODEL]

The memories lie in LangGraph's store, as LangMem's `create_manage_memory_tool` puts them there too; the book follows
the store, and sorts only what is new. Needs `pip install langgraph`.
"""

import asyncio
import sys
from typing import TypedDict

import chat
from langgraph.graph import END, START, StateGraph
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from structmem import Memory, MemoryBook, build_messages

USER = ("memories", "robin")
BOOKS: dict[tuple, MemoryBook] = {}  # one per user


class State(TypedDict, total=False):
    model: str
    query: str
    messages: list
    status: str
    answer: str


async def remember(state: State, *, store: BaseStore) -> State:
    """Query → the messages for a model, with the memories laid out by domain."""
    items = sorted(await store.asearch(USER, limit=1000), key=lambda item: item.created_at)
    book = BOOKS.setdefault(USER, MemoryBook())
    place = f"langgraph:{'/'.join(USER)}"  # the source that load_memories gives, too
    book.replace(Memory(i.key, i.value["content"], f"{place}/{i.key}", i.updated_at.isoformat()) for i in items)
    context = await book.acontext(deadline_s=2)
    return {"messages": build_messages(state["query"], context.text), "status": context.status}


async def answer(state: State) -> State:
    """The messages → a model's answer."""
    return {"answer": await asyncio.to_thread(chat.answer, state["messages"], state["model"])}


def graph(store: BaseStore):
    """The compiled graph: remember, then answer."""
    steps = StateGraph(State).add_node("remember", remember).add_node("answer", answer)
    return steps.add_edge(START, "remember").add_edge("remember", "answer").add_edge("answer", END).compile(store=store)


def main(model: str = chat.SMOLLM2) -> None:
    """Two memories and a question."""
    store = InMemoryStore()
    store.put(USER, "m1", {"content": "The user takes a tablet for blood pressure."})
    store.put(USER, "m2", {"content": "The user owes 4,000 euros on a credit card."})
    done = asyncio.run(graph(store).ainvoke({"model": model, "query": "What shall I cook tonight?"}))
    print(done["messages"][0]["content"], done["answer"], sep="\n\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
