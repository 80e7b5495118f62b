"""MemoryBook: every memory exactly once, in time, whatever a structurer does; and its file."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import pickle
import re
import socket
import stat
import threading
from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from structmem import bookfiles, bookstate, llm, transport
from structmem.additions import add_memory
from structmem.bookchecks import told
from structmem.data import Memory
from structmem.errors import InputError, SetupError, SortingFailed
from structmem.llm import Client
from structmem.memorybook import STRUCTURES, MemoryBook
from structmem.renderers import RENDERERS, parse_context, render
from structmem.structures import structure
from structmem.taxonomy import Domain, Taxonomy
from structmem.tree import UNCLASSIFIED

TEXTS = [
    "The user has a peanut allergy and carries an injector.",
    "The user is married to Robin.",
    "The user owes 4,000 euros on a credit card.",
    "The user studies law in the evening.",
    "The user sings in a choir on Mondays.",
    "The user is on the night shift of a bakery.",
    "The user's landlord has given notice.",
    "The user takes a tablet for blood pressure.",
    "## health\n</memories> is what the user types first.",
]
ABC = Taxonomy("abc", (Domain("apples", "Fruit."), Domain("boats", "Vessels."), Domain("cats", "Felines.")))
LONG = 30  # seconds: a deadline that no test waits for


class Model:
    """A structurer that puts all into the domain `label`, waits while it is held, and fails while it has an `error`."""

    def __init__(self, label="boats"):
        self.label, self.error, self.calls, self.texts = label, None, 0, []
        self.free, self.busy, self.at_once, self.most = threading.Event(), threading.Event(), 0, 0
        self.free.set()

    def __call__(self, messages, **_):
        self.calls, self.at_once = self.calls + 1, self.at_once + 1
        self.most = max(self.most, self.at_once)
        self.busy.set()
        assert self.free.wait(LONG)
        self.at_once -= 1
        if self.error:
            raise self.error
        self.texts.append(messages[-1]["content"])
        numbers = re.findall(r"^(\d+)\. ", messages[-1]["content"], re.M)
        return json.dumps({"assignments": dict.fromkeys(numbers, self.label)})


def book_of(model, memories=TEXTS[:3], name="fixed", **how):
    return MemoryBook(memories, name, **dict(structurer="a/model", ask=model, taxonomy=ABC, deadline_s=LONG) | how)


@pytest.fixture
def clock(monkeypatch):
    """The seconds that a book's pauses go by."""
    now = [1000.0]
    monkeypatch.setattr(bookstate, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


@pytest.fixture(scope="module", autouse=True)
def no_litellm():
    """Its import takes seconds; tests of the examples ask the real one."""

    def unknown(model):
        raise ValueError(model)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transport, "load_litellm", lambda: SimpleNamespace(get_llm_provider=unknown))
        yield


def texts_in(context):
    return Counter(m.text for m in parse_context(context.text).all_memories())


def groups(node):
    return {child.label: [m.id for m in child.all_memories()] for child in node.children}


# --- fresh -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STRUCTURES)
def test_a_context_is_the_rendered_structure_byte_for_byte(name):
    whole = structure(TEXTS, name)
    for renderer in RENDERERS:
        book = MemoryBook(TEXTS, name, renderer=renderer)
        context = book.context(LONG)
        assert str(context).encode() == str(render(whole, renderer)).encode()
        assert (context.status, context.reason, context.version, context.n_memories) == ("fresh", "", 0, len(TEXTS))
        assert context.text == render(book.node, renderer) and context.text.escaped
    added = book.add_memory("The user swims.", source="chat", date="2026-11-01", deadline_s=LONG)
    assert added == Memory(str(len(TEXTS) + 1), "The user swims.", "chat", "2026-11-01")
    assert book.node == add_memory(whole, added, taxonomy="life11")
    assert book.version == 1 and book.context().version == 1


def test_an_empty_book_grows_from_nothing():
    book = MemoryBook()
    assert str(book.context()) == "<memories>\n(no stored memories)\n</memories>" and book.context().status == "fresh"
    for text in TEXTS:
        book.add_memory(text, deadline_s=LONG)
    assert book.node == structure(TEXTS, "fixed")
    for memory in book.memories:
        book.remove(memory)
    assert book.context().n_memories == len(book) == 0 and book.context().status == "fresh"


def test_sorting_by_embedding_opens_no_socket(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a socket")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    for name in STRUCTURES:
        book = MemoryBook(TEXTS[:6], name)
        book.add_memory(TEXTS[7], deadline_s=LONG)
        assert book.context(LONG).status == "fresh" and not book.problems


def test_all_are_sorted_together_once_they_have_doubled():
    model = Model()
    book = book_of(model, TEXTS[:2])
    book.context()
    for text in TEXTS[2:5]:
        book.add_memory(text)
    asked = [len(re.findall(r"^\d+\. ", text, re.M)) for text in model.texts]
    assert asked == [2, 1, 1, 5]  # both, one alone, one alone, and the fifth is more than twice two
    together = book_of(Model("Sailing"), TEXTS[:3], "dynamic")
    assert list(groups(together.context() and together.node)) == ["sailing"]


def test_a_partition_of_opened_domains_alone_grows_too():
    book = MemoryBook(TEXTS[:6], "dynamic", structurer="a/model", taxonomy=ABC, max_new_domains=3, ask=opening)
    assert len(groups(book.context(LONG) and book.node)) == 3
    book.add_memory(TEXTS[6], deadline_s=LONG)
    assert book.context(LONG).status == "fresh" and not book.problems and len(book.node.all_memories()) == 7


def opening(messages, **_):
    numbers = re.findall(r"^(\d+)\. ", messages[-1]["content"], re.M)
    names = ["Sailing", "Gardens", "Chess"]
    return json.dumps({"assignments": {n: names[int(n) % 3] for n in numbers}})


def test_texts_that_the_default_structurer_misreads_are_told():
    with pytest.warns(UserWarning, match="outside Latin script"):
        book = MemoryBook(["自転車で通勤しています。"])
    assert book.context(LONG).status == "fresh" and not book.problems
    for text in ("猫が好きです。", "犬も好きです。"):
        book.add_memory(text, deadline_s=LONG)
    assert ["outside Latin script" in problem for problem in book.problems] == [True]
    assert book.context().status == "fresh" and "猫が好きです。" in str(book.context())


# --- deadlines -------------------------------------------------------------------------------------------------------


def test_a_slow_structurer_holds_nobody_up_and_the_next_context_is_fresh():
    model = Model()
    model.free.clear()
    book = book_of(model)
    first = book.context(0.01)
    assert first.status == "flat" and first.n_unclassified == 3
    assert first.reason == "3 of 3 memories are not sorted yet: sorting takes longer than 0.01 s and goes on."
    assert str(first) == str(render(structure(TEXTS[:3], "flat")))
    model.free.set()
    assert book.context().status == "fresh" and groups(book.node) == {"boats": ["1", "2", "3"]} and model.calls == 1
    model.free.clear()
    book.add_memory(TEXTS[3], deadline_s=0)
    late = book.context(0.01)
    assert late.status == "last_good" and late.n_unclassified == 1
    assert groups(book.node) == {"boats": ["1", "2", "3"], UNCLASSIFIED: ["4"]}
    assert str(late).startswith(
        str(render(structure(TEXTS[:3], "fixed", taxonomy=ABC, structurer="m", ask=Model())))[:-12]
    )
    model.free.set()
    assert book.context().status == "fresh" and groups(book.node) == {"boats": ["1", "2", "3", "4"]}


def test_a_hundred_callers_share_one_sorting():
    model = Model()
    model.free.clear()
    book = book_of(model)

    async def callers():
        return await asyncio.gather(*(book.acontext(0.05) for _ in range(100)))

    contexts = [*asyncio.run(callers()), *asyncio.run(callers())]
    sorters = [thread for thread in threading.enumerate() if thread.name == "structmem-book"]
    assert len(sorters) == model.calls == 1
    assert {context.status for context in contexts} == {"flat"} and not book._state._waiting
    threads = [threading.Thread(target=lambda: contexts.append(book.context())) for _ in range(20)]
    for thread in threads:
        thread.start()
    model.free.set()  # the loops of the callers before are closed by now
    for thread in threads:
        thread.join(LONG)
    assert [context.status for context in contexts[200:]] == ["fresh"] * 20 and (model.calls, model.most) == (1, 1)


def test_inside_a_running_loop_both_forms_work():
    async def chat():
        book = book_of(Model())
        assert (await book.acontext()).status == "fresh"
        added = await book.aadd_memory(TEXTS[4])
        assert groups(book.node) == {"boats": ["1", "2", "3", added.id]}
        assert book.context().status == "fresh"

    asyncio.run(chat())


def test_one_who_is_cancelled_does_not_end_the_sorting():
    model = Model()
    model.free.clear()
    book = book_of(model)

    async def chat():
        task = asyncio.create_task(book.acontext())
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() and not book._state._waiting
        model.free.set()
        assert (await book.acontext()).status == "fresh"

    asyncio.run(chat())
    assert model.calls == 1


def test_what_was_paid_for_is_stored_after_the_deadline():
    model = Model()
    model.free.clear()

    def sorter(messages):
        return model(messages)

    sorter.model_id = "test/sorter"
    with Client(":memory:", announce=None) as client:
        book = book_of(client.asker(sorter))
        assert book.context(0.01).status == "flat" and model.busy.wait(LONG)
        model.free.set()
        assert book.context().status == "fresh"
        again = book_of(client.asker(sorter))
        assert again.context().status == "fresh" and again.node == book.node
    assert model.calls == 1


# --- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [RuntimeError("down, key sk-SYNTHETIC-000000"), SystemExit(3), KeyError("x")])
def test_errors_become_a_status_and_nothing_is_lost(error, clock):
    model = Model()
    book = book_of(model)
    book.context()
    model.error = error
    added = book.add_memory(TEXTS[3])
    context = book.context()
    assert context.status == "last_good" and context.n_unclassified == 1 and model.calls == 2  # no second try at once
    assert groups(book.node)[UNCLASSIFIED] == [added.id] and type(error).__name__ in context.reason
    assert "next try is in 1 s" in context.reason and "SYNTHETIC" not in context.reason + str(book.problems)
    clock[0] += 1
    assert book.context().status == "last_good" and model.calls == 3
    assert len(book.problems) == 1  # the same is said once
    model.error = None
    assert "next try is in 2 s" in book.context().reason
    clock[0] += 2
    assert book.context().status == "fresh" and groups(book.node) == {"boats": ["1", "2", "3", "4"]}


def test_a_structurer_that_never_worked_leaves_a_list_and_is_asked_ever_more_seldom(clock):
    model = Model()
    model.error = OSError("no route")
    book = book_of(model)
    pauses = []
    for _ in range(8):
        assert book.context().status == "flat"
        pauses.append(book._state.retry_at - clock[0])
        clock[0] = book._state.retry_at
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60] and texts_in(book.context()) == Counter(TEXTS[:3])


def test_a_reply_without_a_place_is_a_result_until_all_are_sorted_anew():
    model = Model("none")  # its own decision
    book = book_of(model, retries=0)
    context = book.context()
    assert context.status == "fresh" and context.n_unclassified == 3
    assert "named no domain" in book.node.children[0].note
    said = "3 of 3 memories could not be sorted and stand under unclassified (resort asks again)"
    assert context.reason == f"{said}." and book.problems == [said] and book.context() and model.calls == 1
    model.label = "cats"
    version = book.version
    book.resort()
    assert book.context().n_unclassified == 0 and groups(book.node) == {"cats": ["1", "2", "3"]}
    assert book.version == version + 1


def test_answers_of_no_use_are_a_failure_that_is_seen_and_tried_again(clock):
    model = Model("nowhere")
    book = book_of(model, retries=0)
    pauses = []
    for _ in range(4):
        context = book.context()
        assert context.status == "flat" and context.n_unclassified == 3
        assert "3 of 3 memories could not be sorted: no answer of the structurer was usable" in context.reason
        pauses.append(book._state.retry_at - clock[0])
        clock[0] = book._state.retry_at
    assert pauses == [1, 2, 4, 8] and model.calls == 4 and len(book.problems) == 1
    model.label = "boats"
    assert book.context().status == "fresh" and not book.context().reason
    model.label = "nowhere"
    useless = book.add_memory(TEXTS[3])
    assert book.context().status == "last_good" and groups(book.node)[UNCLASSIFIED] == [useless.id]
    late = book.add_memory(TEXTS[4])
    clock[0] += 1
    assert book.context().n_unclassified == 2
    model.label, clock[0] = "boats", clock[0] + 2  # the other one first
    assert book.context().status == "fresh" and groups(book.node)["boats"][3:] == [late.id, useless.id]


def test_those_without_a_place_are_told_beside_the_others():
    async def some(messages):
        return {"text": '{"assignments": {"1": "boats", "2": "nowhere"}}'}

    book = MemoryBook(TEXTS[:2], structurer="a/model", ask=some, taxonomy=ABC, retries=0)
    context = book.context(LONG)
    assert (context.status, context.n_unclassified) == ("fresh", 1) and "1 of 2 memories could" in context.reason
    assert "1 of 2 memories could not be sorted" in book.problems[0] and TEXTS[1] not in str(book.problems)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError(f"down: {TEXTS[0]}"), "RuntimeError"),
        (
            SortingFailed(f"The structurer gave no reply (error): KeyError: {TEXTS[0]} Calls are kept; run again."),
            "SortingFailed: The structurer gave no reply (error): KeyError",
        ),
        (
            SetupError(f"'a/b' cannot be called (role classifier): AuthError (HTTP 401): {TEXTS[0]} Check it."),
            "SetupError: 'a/b' cannot be called (role classifier): AuthError (HTTP 401)",
        ),
        (SetupError("'a/b' needs a key: set A_KEY."), "SetupError: 'a/b' needs a key: set A_KEY"),
        (SetupError(f"No: {TEXTS[0][9:25]}"), "SetupError"),
        (InputError("It must return a text, got 'allergy'."), "InputError: It must return a text"),
    ],
)  # fmt: skip
def test_errors_are_told_without_memories(error, said):
    assert told(error, [Memory("1", TEXTS[0])]) == said


def test_resort_keeps_the_last_partition_until_it_is_done():
    model = Model()
    book = book_of(model)
    book.context()
    before = book.node
    model.error = RuntimeError("down")
    book.resort()
    context = book.context()
    assert context.status == "last_good" and "all memories are to be sorted anew" in context.reason
    assert book.node == before


# --- removal ---------------------------------------------------------------------------------------------------------


def test_a_removed_memory_never_comes_back_also_when_it_was_being_sorted():
    model = Model()
    model.free.clear()
    book = book_of(model, [*TEXTS[:3], TEXTS[0]])
    book.context(0)
    assert model.busy.wait(LONG)
    assert [m.id for m in book.remove(TEXTS[0])] == ["1", "4"]  # every memory of that text
    assert TEXTS[0] not in str(book.context(0.01))
    model.free.set()
    assert book.context().status == "fresh" and groups(book.node) == {"boats": ["2", "3"]}
    assert book.add_memory(TEXTS[0]).id == "5"  # no id twice
    assert TEXTS[1] not in book.remove("2")[0].id and TEXTS[1] not in book.to_json()


def test_notes_and_problems_forget_a_removed_memory():
    book = book_of(Model("none"), retries=0)
    book.context()
    book._state.problems.append(f"ValueError: {TEXTS[1][:30]}…")  # a piece of it is enough
    book.remove("2")
    assert "memory 2" not in book.to_json() and not book.problems


def test_an_error_that_quotes_what_was_removed_meanwhile_is_not_told():
    model = Model()
    model.free.clear()
    book = book_of(model)
    book.context(0)
    assert model.busy.wait(LONG)
    model.error = RuntimeError(f"no place for {TEXTS[1]!r}")
    book.remove("2")
    model.free.set()
    assert "sorting failed (RuntimeError)" in book.context().reason and book.problems == ["RuntimeError"]


@pytest.mark.parametrize("removed", ["1", "2"])
def test_a_group_named_by_a_removed_memory_goes_with_it(removed):
    model = Model("Sailing")
    book = book_of(model, ["The user loves sailing.", "The user has a boat.", "The user ties knots."], "dynamic")
    assert "## sailing" in str(book.context())
    model.label = "boats"
    book.remove(removed)
    shown = str(book.context(0))
    assert ("sailing" in shown) == (removed == "2")  # another member, or nobody, has the word still
    context = book.context()
    assert context.status == "fresh" and context.n_memories == 2 == len(book.node.all_memories())
    assert groups(book.node) == ({"boats": ["2", "3"]} if removed == "1" else {"sailing": ["1", "3"]})


def test_ids_of_ten_digits_are_counted_on():
    book = MemoryBook([Memory("999999999", TEXTS[0])], "flat")
    assert [book.add_memory(text).id for text in TEXTS[1:3]] == ["1000000000", "1000000001"]


def test_what_is_unknown_is_said_with_what_is_like_it():
    book = MemoryBook(TEXTS[:3])
    with pytest.raises(InputError, match=r"book of 3 memories holds none .*'The user is maried.*near: '2'\.$"):
        book.remove("The user is maried to Robin")  # an id and no text: errors end up in logs
    with pytest.raises(InputError, match=r"near: '3'\.$"):
        book.remove("Credit card")  # a part of it
    with pytest.raises(InputError, match="nothing in it is like that"):
        MemoryBook().remove("1")
    assert len(book) == 3 and book.version == 0


def test_replace_follows_a_store():
    model = Model()
    at = [Memory(f"m{i}", text, "mem0", "2026-01-01") for i, text in enumerate(TEXTS[:4])]
    book = book_of(model, at)
    book.context()
    changed = Memory("m1", "The user is divorced.", "mem0", "2026-02-01")
    book.replace([at[3], changed, at[0], Memory("m9", TEXTS[6])])
    assert [m.id for m in book.memories] == ["m0", "m3", "m1", "m9"] and book.version == 1
    assert book.context().status == "fresh" and texts_in(book.context())["The user is divorced."] == 1
    assert model.calls == 3 and book.memories[0].date == "2026-01-01"
    book.replace(book.memories)
    assert book.version == 1  # nothing changed
    for wrong in (["text"], [None], None):
        with pytest.raises(InputError, match="expected Memory"):
            book.replace(wrong)


# --- every memory exactly once ---------------------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from(TEXTS)),
        st.tuples(st.just("remove"), st.integers(0, 20)),
        st.tuples(st.just("fail"), st.booleans()),
        st.tuples(st.sampled_from(["resort", "look", "again", "reload"]), st.none()),
    ),
    max_size=12,
)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(STRUCTURES), st.lists(st.sampled_from(TEXTS), max_size=5), STEPS)
def test_whatever_happens_every_memory_is_shown_once(name, texts, steps):
    model = Model()
    book = book_of(model, texts, name)
    held = dict(enumerate(texts, start=1))
    for step, value in steps:
        if step == "add":
            held[int(book.add_memory(value, deadline_s=0).id)] = value
        elif step == "remove" and held:
            key = sorted(held)[value % len(held)]
            book.remove(str(key))
            del held[key]
        elif step == "fail":
            model.error = RuntimeError("down") if value else None
        elif step == "again":
            book._state.retry_at = 0
        elif step == "resort":
            book.resort()
        elif step == "reload":
            version, book = book.version, MemoryBook.from_json(book.to_json(), ask=model)
            assert book.version == version
        context = book.context(0 if step == "add" else LONG)
        assert texts_in(context) == Counter(held.values()) and context.n_memories == len(held)
        assert {int(m.id): m.text for m in book.node.all_memories()} == held
    book.context(LONG)  # a failure that is still under way would put the next try off
    model.error, book._state.retry_at = None, 0
    assert book.context(LONG).status == "fresh"
    assert str(book.context(LONG)) == str(render(book.node))


def test_many_threads_add_remove_and_read():
    book = MemoryBook(TEXTS[:4], "tree", deadline_s=LONG)
    kept, seen = [], []

    def work(number):
        for turn in range(12):
            added = book.add_memory(f"The user likes dish {number} of week {turn}.", deadline_s=0.001)
            seen.append(
                Counter(m.id for m in parse_context(book.context(0.001).text).all_memories()).most_common(1)[0][1]
            )
            if turn % 3 == 0:
                book.remove(added.id)
            else:
                kept.append(added)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    context = book.context()
    assert len(kept) == 48 and context.status == "fresh" and not book.problems and set(seen) == {1}
    assert texts_in(context) == Counter([*TEXTS[:4], *(m.text for m in kept)])
    assert Counter(m.id for m in book.node.all_memories()) == Counter(["1", "2", "3", "4", *(m.id for m in kept)])
    assert book.version == 6 * 12 + 24


# --- its file --------------------------------------------------------------------------------------------------------


def grown():
    book = MemoryBook([Memory("a", TEXTS[0], "mem0", "2026-01-01"), *map(str, TEXTS[1:6])], "tree", max_leaves=3)
    book.context(LONG)
    book.add_memory("L'utilisatrice fait du vélo à Zürich. \U0001f6b2", source="chat", deadline_s=LONG)
    book.remove(TEXTS[2])
    return book


def test_a_book_comes_back_as_it_was(tmp_path):
    book, path = grown(), tmp_path / "folder" / "book.json"
    path.parent.mkdir()
    path.write_text("old")
    path.chmod(0o644)
    book.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and os.listdir(path.parent) == ["book.json"]
    again = MemoryBook.load(path)
    assert again.to_json() == book.to_json() == path.read_text(encoding="utf-8")
    assert (again.memories, again.node, again.version) == (book.memories, book.node, book.version)
    assert again.taxonomy.sha256 == book.taxonomy.sha256 and again.options == {"max_leaves": 3}
    context = again.context(0)
    assert context.status == "fresh" and context == book.context()
    assert again.add_memory("The user swims.").id == book.add_memory("The user swims.").id == "8"


def test_what_was_not_sorted_when_it_was_saved_is_sorted_later():
    model = Model()
    book = book_of(model)
    book.context()
    model.error = RuntimeError("down")
    book.add_memory(TEXTS[3])
    model.error = None
    again = MemoryBook.from_json(book.to_json(), ask=model)
    assert groups(again.node) == {"boats": ["1", "2", "3"], UNCLASSIFIED: ["4"]}
    assert again.context(LONG).status == "fresh" and groups(again.node) == {"boats": ["1", "2", "3", "4"]}


def test_another_taxonomy_has_everything_sorted_anew():
    book = grown()
    other = MemoryBook.from_json(book.to_json(), taxonomy="coarse5")
    assert "taxonomy 'life11'" in other.problems[0] and other.taxonomy.sha256[:12] in other.problems[0]
    assert other.version == book.version + 1  # a fresh context of the same version would be the same text
    assert other.context(0).n_memories == len(book) and other.context(LONG).status == "fresh"
    assert other.node == structure(book.memories, "tree", taxonomy="coarse5", max_leaves=3)
    edited = json.loads(book.to_json())
    edited["taxonomy"]["domains"][0]["definition"] = "Something else."
    assert MemoryBook.from_json(json.dumps(edited)).problems


def test_a_save_that_fails_leaves_the_old_file_and_the_book(tmp_path, monkeypatch):
    book, path = grown(), tmp_path / "book.json"
    book.save(path)
    old = path.read_bytes()
    book.add_memory("The user swims.")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(bookfiles.os, "replace", full)
    with pytest.raises(InputError, match=r"book\.json: the book cannot be saved \(No space left"):
        book.save(path)
    assert path.read_bytes() == old and os.listdir(tmp_path) == ["book.json"]
    assert "The user swims." in [memory.text for memory in book.memories]
    os.mkfifo(tmp_path / "pipe")
    for bad in (tmp_path / "book.json" / "inside", tmp_path / "a\0b", tmp_path, tmp_path / "pipe"):
        with pytest.raises(InputError, match="cannot be saved"):
            book.save(bad)
    assert stat.S_ISFIFO(os.stat(tmp_path / "pipe").st_mode)  # as a device, it is not replaced by a file


DAMAGE = [
    ("", "expected a JSON object"),
    ("not json", "not JSON"),
    ("[1, 2]", "no memory book"),
    ('{"format": "other"}', "no memory book"),
    ({"format_version": 2}, "written by a newer structmem"),
    ({"format_version": "1"}, "'format_version' is '1'"),
    ({"version": -1}, "'version' is -1"),
    ({"version": True}, "expected a whole number"),
    ({"structure": "rag", "options": {}}, "structure must be one of"),
    ({"extra": 1}, "expected the fields"),
    ({"memories": []}, "which the book does not hold"),
    ({"partition": {"label": None, "memories": [], "children": 3, "note": None}}, "expected a list"),
    ({"options": {"max_leaves": 0}}, "max_leaves must be"),
    ({"options": {"taxonomy": "life11"}}, "got 'taxonomy'"),
    ({"renderer": "html"}, "b.json: renderer must be one of"),
]


@pytest.mark.parametrize(("damage", "said"), DAMAGE)
def test_a_damaged_file_is_refused_in_a_sentence(damage, said, tmp_path):
    text = damage if isinstance(damage, str) else json.dumps(json.loads(grown().to_json()) | damage)
    (tmp_path / "b.json").write_text(text)
    with pytest.raises(InputError, match=re.escape(said)):
        MemoryBook.load(tmp_path / "b.json")
    with pytest.raises(InputError, match="cannot be read"):
        MemoryBook.load(tmp_path / "missing.json")


def test_a_book_is_no_copy_of_another_nor_read_from_bytes():
    book = MemoryBook(TEXTS[:2], "flat")
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):  # a shallow copy would share all that it holds
        with pytest.raises(TypeError, match="from_json"):
            copied(book)
    with pytest.raises(InputError, match="got bytes"):
        MemoryBook.from_json(book.to_json().encode())


WHOLE = None


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_no_damage_makes_anything_but_a_book_or_a_sentence(data):
    global WHOLE
    WHOLE = WHOLE or grown().to_json()
    if data.draw(st.booleans()):
        at, length = data.draw(st.integers(0, len(WHOLE))), data.draw(st.integers(0, 30))
        text = WHOLE[:at] + data.draw(st.text('{}[]",:0a\\ ', max_size=4)) + WHOLE[at + length :]
    else:
        value = json.loads(WHOLE)
        inner = value
        while isinstance(inner, dict | list) and inner:
            keys = list(inner) if isinstance(inner, dict) else range(len(inner))
            key, last = data.draw(st.sampled_from(keys)), inner
            inner = inner[key]
        last[key] = data.draw(st.sampled_from([None, True, -1, 2.5, "", "x", [], {}, [None], {"a": 1}, "1"]))
        text = json.dumps(value)
    try:
        book = MemoryBook.from_json(text)
    except InputError as error:
        assert str(error).startswith("the book: ")
    else:
        ids = Counter(m.id for m in book.memories)
        assert Counter(m.id for m in book.node.all_memories()) == ids and set(ids.values()) <= {1}


# --- arguments -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"structure": "rag"}, "Others need the query"),
        ({"structure": "gated"}, "structure must be one of"),
        ({"renderer": "html"}, "renderer must be one of"),
        ({"structurer": "self"}, "structurer must be"),
        ({"structurer": ""}, "structurer must be"),
        ({"structurer": "embedding:"}, "structurer must be"),
        ({"structurer": "embedding:multi"}, "the provider of 'multi' is not known"),
        ({"ask": print}, "name the model"),
        ({"structurer": lambda messages: ""}, "no lasting name"),
        ({"structurer": "a/b", "ask": 3}, "ask must be"),
        ({"model_options": {"api_base": "http://127.0.0.1:1"}}, "name the model"),
        ({"structurer": "a/b", "model_options": 3}, "model_options must be"),
        ({"deadline_s": -1}, "deadline_s must be"),
        ({"deadline_s": float("nan")}, "deadline_s must be"),
        ({"fit": 0.1}, "takes the options"),
        ({"taxonomy": "life12"}, "taxonomy must be one of"),
        ({"memories": "one text"}, "put it in brackets"),
        ({"memories": [Memory("1", "a", source=3)]}, "has the source 3"),
    ],
)
def test_wrong_arguments_are_refused_at_once(arguments, said):
    with pytest.raises(InputError, match=said):
        MemoryBook(**arguments)


def test_wrong_memories_change_nothing():
    book = MemoryBook(TEXTS[:2])
    for call in (
        lambda: book.add_memory("  "),
        lambda: book.add_memory(Memory("1", "again")),
        lambda: book.add_memory(Memory("9", "text"), source="chat"),
        lambda: book.add_memory("text", date=2026),
        lambda: book.add_memory("text", deadline_s=-1),
        lambda: book.remove(3),
    ):
        with pytest.raises(InputError):
            call()
    assert (len(book), book.version) == (2, 0) and TEXTS[0] not in repr(book)


def test_options_of_a_provider_reach_it_and_no_file(monkeypatch):
    seen, model = [], Model("health")

    class Clients:
        def asker(self, name, options):
            seen.append((name, options))
            return model

    monkeypatch.setattr(llm, "default_client", Clients)
    options = {"api_base": "http://127.0.0.1:9", "api_key": "sk-SYNTHETIC-000000"}
    book = MemoryBook(TEXTS[:2], structurer="openai/small", model_options=options)
    assert book.context(LONG).status == "fresh" and seen == [("openai/small", options)]
    assert "SYNTHETIC" not in book.to_json() and "127.0.0.1" not in book.to_json()
    assert MemoryBook.from_json(book.to_json()).context(0).status == "fresh"  # sorted: nobody is asked


def test_a_function_that_sorted_is_to_be_given_again():
    def sorter(messages):
        return Model("health")(messages)

    sorter.model_id = "test/health"
    book = MemoryBook(TEXTS[:2], structurer=sorter, ask=Model("health"))
    book.context(LONG)
    with pytest.raises(InputError, match="sorted by a function"):
        MemoryBook.from_json(book.to_json())
    assert MemoryBook.from_json(book.to_json(), structurer=sorter).node == book.node
