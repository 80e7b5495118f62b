"""Structures: nothing is lost, whoever sorts and whatever they reply."""

from __future__ import annotations

import asyncio
import json
import math
import random
import re
from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from structmem import listings, registry, structurers
from structmem.calls import Call
from structmem.data import Entry, Memory, wrap_memories
from structmem.errors import InputError, StructmemError
from structmem.llm import Client
from structmem.quality import hit_rate
from structmem.structures import STRUCTURES, astructure, option_defaults, register, spec, structure
from structmem.taxonomy import Domain, Taxonomy
from structmem.tree import UNCLASSIFIED, Node

ABC = Taxonomy(
    "abc",
    (Domain("apples", "Fruit that grows on apple trees."), Domain("boats", "Vessels."), Domain("cats", "Felines.")),
    {"fruit": ("apples",), "sea": ("boats",), "lost": ("cats",)},
    ("lost",),
)
MEMORIES = [f"memory number {k}" for k in range(1, 7)]


def numbers_of(messages):
    """Texts by number, as a model would read them from the prompt."""
    return {int(k): json.loads(text) for k, text in re.findall(r"^(\d+)\. (.*)$", messages[-1]["content"], re.M)}


def replying(*replies):
    """A model that gives these replies in turn, the last one for ever, and keeps what it was asked."""
    asked = []

    def ask(messages, **kw):
        asked.append((messages, kw))
        reply = replies[min(len(asked), len(replies)) - 1]
        return reply(messages) if callable(reply) else reply

    ask.asked = asked
    return ask


def assign(*labels, start=1):
    return json.dumps({"assignments": [{"memory": k, "domain": d} for k, d in enumerate(labels, start) if d]})


def everything(domain):
    return lambda messages: json.dumps({"assignments": dict.fromkeys(map(str, numbers_of(messages)), domain)})


def sort(name, ask, memories=MEMORIES, **kw):
    return structure(memories, name, taxonomy=ABC, structurer="a/model", ask=ask, **kw)


def layout(node):
    """Path → ids, for nodes that hold memories."""
    return {"/".join(path): [m.id for m in part.memories] for path, part in node.walk() if part.memories}


# --- the registry and its menus -------------------------------------------------------------------


def test_registry_says_what_each_structure_is():
    declared = {name: (s.keeps_all, s.uses_query, s.uses_structurer) for name, s in STRUCTURES.items()}
    assert {name: declared[name] for name in ("flat", "fixed", "dynamic", "tree", "rag")} == {
        "flat": (True, False, False),
        "fixed": (True, False, True),
        "dynamic": (True, False, True),
        "tree": (True, False, True),
        "rag": (False, True, True),
    }
    assert not any(spec(name).base for name in ("flat", "fixed", "dynamic", "tree", "rag"))
    assert option_defaults("dynamic", "a/model")["max_new_domains"] == 2
    assert "fit" in option_defaults("dynamic") and "fit" not in option_defaults("dynamic", "a/model")
    assert option_defaults("flat", "a/model") == {}


@pytest.mark.parametrize(
    "kw, message",
    [
        (dict(name="tre"), r"structure must be one of \['dynamic', .*'fixed', 'flat', .*'tree', .*\], got 'tre'"),
        (dict(name="tree", max_leafs=3), r"'tree' sorted by embedding takes .*'max_leaves'.* got 'max_leafs'"),
        (dict(name="fixed", batch_size=3), "got 'batch_size'"),
        (dict(name="dynamic", max_new_domains=-1), "max_new_domains must be a whole number"),
        (dict(name="dynamic", max_new_domains=True), "max_new_domains must be a whole number"),
        (dict(name="fixed", structurer="a/b", per_memory=1), "per_memory must be True or False"),
        (dict(name="rag", query="q", threshold=3), "threshold must be a cosine"),
        (dict(name="rag"), "'rag' uses the query"),
        (dict(name="rag", query="  "), "'rag' uses the query"),
        (dict(name="fixed", structurer=""), "structurer must be 'embedding'"),
        (dict(name="fixed", ask=lambda messages, **kw: ""), "ask was given"),
        (dict(name="rag", query="q", structurer="a/b", ask=lambda messages, **kw: ""), "no embed"),
        (dict(name="fixed", memories=[Memory("1", "a"), Memory("1", "b")]), "unique ids"),
    ],
)
def test_refusals_show_the_menu(kw, message):
    with pytest.raises(InputError, match=message):
        structure(**{"memories": MEMORIES} | kw)


def test_a_control_is_one_decorated_function():
    @register("backwards", keeps_all=True, uses_query=False, base="fixed")
    def backwards(job, *, label: str | None = None):
        return Node(label, tuple(reversed(job.base.all_memories())))

    @register("loses", keeps_all=True, uses_query=False, uses_structurer=False)
    def loses(job):
        return Node(None, job.memories[1:])

    @register("doubles", keeps_all=False, uses_query=False, uses_structurer=False)
    def doubles(job):
        return Node(None, job.memories[:1] * 2)

    try:
        assert spec("backwards").base == "fixed"
        ask = replying(assign("boats", "apples", "boats"))
        node = sort("backwards", ask, MEMORIES[:3], label="x", per_memory=False)
        assert layout(node) == {"x": ["3", "1", "2"]}
        with pytest.raises(StructmemError, match=r"lost memories \['1'\]"):
            structure(["a", "b"], "loses")
        with pytest.raises(StructmemError, match=r"repeated or invented \['1'\]"):
            structure(["a", "b"], "doubles")
    finally:
        for name in ("backwards", "loses", "doubles"):
            STRUCTURES.pop(name, None)


# --- flat, and no memories ------------------------------------------------------------------------


def test_flat_is_one_node_in_the_given_order():
    memories = wrap_memories(["b", "a", "a"])
    assert structure(memories, "flat", structurer="no/such") == Node(None, memories)


@pytest.mark.parametrize("name", ["flat", "fixed", "dynamic", "tree"])
def test_no_memories_need_no_call(name):
    ask = replying("never")
    assert structure([], name, structurer="a/model", ask=ask) == Node(None) and not ask.asked


# --- a model sorts --------------------------------------------------------------------------------


def test_fixed_by_number_in_taxonomy_order():
    ask = replying(assign("cats", "apples", "cats", "boats", "apples", "boats"))
    node = sort("fixed", ask, partition_draw=3)
    assert layout(node) == {"apples": ["2", "5"], "boats": ["4", "6"], "cats": ["1", "3"]}
    ((messages, kw),) = ask.asked
    assert [m["role"] for m in messages] == ["system", "user"]
    assert kw["role"] == "classifier" and kw["draw"] == 3 and kw["memories"] == tuple(MEMORIES)
    assert kw["params"]["temperature"] == 0 and kw["params"]["max_tokens"] > 6 * 20
    assert numbers_of(messages) == dict(enumerate(MEMORIES, 1))
    assert all(domain.definition in messages[0]["content"] for domain in ABC.domains)


def test_a_missing_answer_is_asked_again_alone_then_unclassified():
    ask = replying(assign("cats", None, "cats", "boats", "apples", "boats"), "{}", assign(None))
    node = sort("fixed", ask)
    assert layout(node)[UNCLASSIFIED] == ["2"]
    assert "memory 2: " in node.children[-1].note
    assert all(numbers_of(messages) == {2: MEMORIES[1]} for messages, _ in ask.asked[1:])
    assert len({json.dumps(messages) for messages, _ in ask.asked[:2]}) == 2


def test_unknown_and_doubled_answers_are_asked_again():
    said = [(1, "cats"), (1, "boats"), (2, "dogs"), (3, "cats"), (4, "cats"), (5, "cats"), (6, "cats")]
    doubled = json.dumps({"assignments": [{"memory": k, "domain": domain} for k, domain in said]})
    ask = replying(doubled, assign("boats", "apples"))
    node = sort("fixed", ask)
    assert layout(node) == {"apples": ["2"], "boats": ["1"], "cats": ["3", "4", "5", "6"]}
    assert numbers_of(ask.asked[1][0]) == {1: MEMORIES[0], 2: MEMORIES[1]}


def test_numbers_from_zero_are_not_taken_one_off():
    ask = replying(assign("cats", "boats", "apples", "cats", "cats", "cats", start=0), everything("boats"))
    assert layout(sort("fixed", ask)) == {"boats": list("123456")}


def test_a_cut_reply_is_asked_in_smaller_parts():
    def reply(messages):
        n = len(numbers_of(messages))
        return {"text": everything("cats")(messages), "finish_reason": "length" if n > 3 else "stop"}

    ask = replying(reply)
    assert layout(sort("fixed", ask)) == {"cats": list("123456")}
    assert [len(numbers_of(messages)) for messages, _ in ask.asked] == [6, 3, 3]
    limits = [kw["params"]["max_tokens"] for _, kw in ask.asked]
    assert limits[1] == limits[2] > limits[0]


def test_batches_and_one_call_per_memory():
    ask = replying(everything("cats"))
    sort("fixed", ask, batch_size=4)
    assert [len(numbers_of(m)) for m, _ in ask.asked] == [4, 2]
    ask = replying(everything("cats"))
    assert layout(sort("fixed", ask, per_memory=True)) == {"cats": list("123456")}
    assert [len(numbers_of(m)) for m, _ in ask.asked] == [1] * 6


def test_a_schema_is_asked_for_unless_it_is_not_wanted():
    ask = replying(everything("cats"))
    sort("fixed", ask, json_schema=False)
    sort("fixed", ask, max_tokens=77)
    assert "response_format" not in ask.asked[0][1]["params"]
    params = ask.asked[1][1]["params"]
    by_number = params["response_format"]["json_schema"]["schema"]["properties"]["assignments"]
    assert by_number["required"] == list("123456") and params["max_tokens"] == 77
    assert by_number["properties"]["6"]["enum"] == ["apples", "boats", "cats"]
    as_asked = json.dumps({"assignments": dict.fromkeys(by_number["required"], "boats")})
    assert layout(sort("fixed", replying(as_asked), json_schema=True)) == {"boats": list("123456")}


def test_garbage_is_unclassified_with_the_reason():
    ask = replying("I would rather talk about the weather.")
    node = sort("fixed", ask)
    assert layout(node) == {UNCLASSIFIED: list("123456")} and "no_json" in node.children[0].note
    assert len(ask.asked) == 3


def test_a_failed_provider_is_no_partition():
    def gone(reason):
        return lambda messages: (Call("", "no_response", reason, error="no answer within 120 s."), None)

    with pytest.raises(structurers.SortingFailed, match="timeout"):
        sort("fixed", gone("timeout"))
    node = sort("fixed", gone("refused"))
    assert layout(node) == {UNCLASSIFIED: list("123456")} and "refused" in node.children[0].note


def test_dynamic_opens_folds_and_limits():
    # "Cat" is "cats"; "music" and "Musics" are one; "tools" has one memory and is asked again
    first = assign("Cat", "music", "Musics", "tools", "garden", "garden")
    ask = replying(first, assign("boats", start=4))
    node = sort("dynamic", ask)
    assert layout(node) == {"boats": ["4"], "cats": ["1"], "music": ["2", "3"], "garden": ["5", "6"]}
    system = ask.asked[0][0][0]["content"]
    assert "{" not in system.split("Reply with")[0] and "at most 2" in system
    assert numbers_of(ask.asked[1][0]) == {4: MEMORIES[3]}
    only_one = sort("dynamic", replying(first, everything("apples")), max_new_domains=1)
    assert layout(only_one) == {"apples": ["4", "5", "6"], "cats": ["1"], "music": ["2", "3"]}
    refused = sort("dynamic", replying(first, "no"), max_new_domains=2)
    assert layout(refused)[UNCLASSIFIED] == ["4"] and "new domain was not opened" in refused.children[-1].note
    none = replying(everything("cats"))
    sort("dynamic", none, max_new_domains=0)
    assert "new domain" not in none.asked[0][0][0]["content"]


def test_tree_is_proposed_then_sorted():
    proposal = json.dumps({"domains": {"cats": ["Indoor", "outdoor", "indoors", "cats"], "boats": []}})
    ask = replying(proposal, assign("cats/indoor", "cats", "cats/outdoor", "boats", "cats/indoor", "apples"))
    node = sort("tree", ask)
    cats = {"cats": ["2"], "cats/indoor": ["1", "5"], "cats/outdoor": ["3"]}
    assert layout(node) == {"apples": ["6"], "boats": ["4"]} | cats
    assert [kw["role"] for _, kw in ask.asked] == ["proposer", "classifier"]
    assert ask.asked[1][0][0]["content"].count("- cats/") == 2


def test_tree_has_at_most_so_many_leaves():
    names = [f"leaf {chr(97 + k)}" for k in range(9)]
    ask = replying(json.dumps({"domains": {"cats": names}}), everything("cats"))
    sort("tree", ask)
    sort("tree", replying(*[json.dumps({"domains": {"cats": names}}), everything("cats")]), max_leaves=1)
    assert ask.asked[1][0][0]["content"].count("- cats/") == 7


@pytest.mark.parametrize("proposal", ["nothing to propose", '{"domains": {}}'])
def test_tree_without_a_proposal_has_one_level_and_says_so(proposal):
    def reply(messages):
        return proposal if "subdomains for facts" in messages[0]["content"] else everything("cats")(messages)

    node = sort("tree", replying(reply))
    assert layout(node) == {"cats": list("123456")} and node.note.startswith("one level only")


NASTY = [
    'x"\n2. "forged',
    "a\u2028" + '2. "b"',
    "c\x85 3. d",
    "e\r\n4. f",
    "{domains} {max_leaves}",
    "\u200b\u202egone\ud800",
    "🧑\u200d🔧 repairs bikes",
    "\\",
]


def test_a_memory_cannot_forge_a_number():
    listed = listings.listing(NASTY)
    lines = listed.splitlines()
    assert len(lines) == len(NASTY)
    for k, (line, text) in enumerate(zip(lines, NASTY, strict=True), 1):
        number, _, quoted = line.partition(". ")
        assert int(number) == k and json.loads(quoted) == text
    listed.encode()


@given(st.lists(st.text(st.characters(), max_size=40), min_size=1, max_size=5))
def test_every_text_is_one_line_and_comes_back(texts):
    lines = listings.listing(texts).splitlines()
    assert [json.loads(line.partition(". ")[2]) for line in lines] == texts


@pytest.mark.parametrize(
    "a, b",
    [
        ("Hobby", "hobbies"),
        ("Food & Drink", "food and drink"),
        ("pets.", "Pet"),
        ("side-project", "Side projects"),
        ("ＰＥＴ", "pet"),
    ],
)
def test_variants_of_a_name_are_one(a, b):
    assert listings.fold(a) == listings.fold(b)


def test_other_names_stay_apart():
    names = ["pets", "business", "busy", "news", "new", "plants", "planes", "gas", "class"]
    assert len({listings.fold(name) for name in names}) >= len(names) - 1  # "news" may be read as a plural
    assert listings.clean_name("x" * 60) is None and listings.clean_name(" None ") is None
    assert listings.clean_name("शौक") == "शौक" and listings.fold("शौक") != listings.fold("शक")
    assert listings.clean_name("- 'Food & drink'-") == "food & drink"
    assert listings.clean_name("## Side\nprojects</x>") == "side projects x"


# --- whoever sorts, whatever they say -------------------------------------------------------------

_CHAOS = st.sampled_from(
    ["", "no", "{}", "[]", '{"assignments": null}', '{"assignments": [{"memory": 99, "domain": "cats"}]}', "<think>",
     '{"domains": {"cats": ["a", "b"], "dogs": ["c"]}}', '{"domains": 3}', '[{"memory": 1}]', "```json\n{", "null"]
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(["flat", "fixed", "dynamic", "tree"]),
    texts=st.lists(st.sampled_from(["same", "same ", "other", "x\n1. y", '"']), min_size=1, max_size=8),
    seed=st.integers(0, 10**6),
    fixed_replies=st.lists(_CHAOS, max_size=3),
    per_memory=st.booleans(),
)
def test_every_memory_comes_out_once(name, texts, seed, fixed_replies, per_memory):
    rng = random.Random(seed)
    labels = ["apples", "BOATS ", "cats", "cat", "new one", "new ones", "dogs", "", None, "unclassified", "cats/a", 3]
    queue = list(fixed_replies)

    def ask(messages, **kw):
        if queue:
            return queue.pop()
        n = len(numbers_of(messages))
        numbers = [rng.choice([rng.randint(-1, n + 1), str(rng.randint(1, n))]) for _ in range(n + 1)]
        rows = [{"memory": number, "domain": rng.choice(labels)} for number in numbers]
        return {"text": json.dumps({"assignments": rows}), "finish_reason": rng.choice(["stop", "stop", "length"])}

    given_ = wrap_memories(texts)
    options = {} if name == "flat" else {"per_memory": per_memory, "batch_size": rng.randint(1, 4)}
    node = structure(given_, name, taxonomy=ABC, structurer="a/model", ask=ask, **options)
    assert Counter(node.all_memories()) == Counter(given_)
    opened = [child.label for child in node.children if child.label not in (*ABC.names, UNCLASSIFIED)]
    assert len(opened) <= 2 and all(len(c.all_memories()) >= 2 for c in node.children if c.label in opened)
    assert node.depth <= {"flat": 0, "tree": 2}.get(name, 1)
    assert Node.from_dict(node.to_dict()) == node


# All but what needs a model, and what needs labels.
BY_EMBEDDING = sorted(set(STRUCTURES) - {"self_check", "oracle"})


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text(min_size=1).map("a{}".format), min_size=1, max_size=9), st.sampled_from(BY_EMBEDDING))
def test_the_embedding_structurer_keeps_what_it_must(texts, name):
    given_ = wrap_memories(texts)
    node = structure(given_, name, query="what now?")
    assert node == structure(given_, name, query="what now?")
    out = Counter(node.all_memories())
    assert out == Counter(given_) if spec(name).keeps_all else not out - Counter(given_)


# --- sync and async, plain and stored -------------------------------------------------------------


def test_async_ask_runs_side_by_side_from_both_forms():
    running = most = 0

    async def ask(messages, **kw):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.005)
        running -= 1
        return everything("cats")(messages)

    for _ in range(2):
        most = 0
        assert layout(sort("fixed", ask, per_memory=True)) == {"cats": list("123456")} and most > 1

    async def inside_a_loop():
        same = await astructure(MEMORIES, "fixed", taxonomy=ABC, structurer="a/model", ask=ask)
        assert layout(same) == {"cats": list("123456")}
        return structure(MEMORIES, "fixed", taxonomy=ABC)  # as in a notebook cell

    assert asyncio.run(inside_a_loop()) == structure(MEMORIES, "fixed", taxonomy=ABC)


def test_every_call_is_awaited_before_an_error_leaves():
    done = []

    async def ask(messages, **kw):
        (text,) = numbers_of(messages).values()
        if text == MEMORIES[0]:
            raise StructmemError("the budget is spent")
        await asyncio.sleep(0.005)
        done.append(text)
        return assign("cats")

    with pytest.raises(StructmemError, match="budget"):
        sort("fixed", ask, per_memory=True)
    assert sorted(done) == MEMORIES[1:]


def test_a_plain_function_that_waits_is_told_so():
    with pytest.raises(InputError, match="async def"):
        sort("fixed", lambda messages, **kw: asyncio.sleep(0, "x"))


def test_the_embedding_structurer_is_a_stored_call_like_any_other():
    with Client(":memory:", announce=None) as client:
        for name in ("fixed", "dynamic", "tree", "rag"):
            kw = dict(query="Which boat?", taxonomy=ABC, ask=client.asker("no/model-is-asked"))
            once = structure(MEMORIES, name, **kw)
            assert once == structure(MEMORIES, name, **kw) == structure(MEMORIES, name, **kw | {"ask": None})
        assert client.counts["made"] == 4 and client.counts["by_role"].keys() == {"structurer"}


def test_a_callable_model_sorts_through_the_client_and_draws_are_apart():
    def model(messages):
        return assign(*["cats"] * len(numbers_of(messages)))

    model.model_id = "test/all-cats"
    with Client(":memory:", announce=None) as client:
        kw = dict(taxonomy=ABC, structurer=model, ask=client.asker(model))
        for draw in (0, 1, 0):
            assert layout(structure(MEMORIES, "fixed", partition_draw=draw, **kw)) == {"cats": list("123456")}
        assert (client.counts["made"], client.counts["stored"]) == (2, 1)


# --- rag ------------------------------------------------------------------------------------------


class Vectors:
    """An ask with an embedding model: the angle to the query is written in the text."""

    def __init__(self, wait):
        self.wait = wait

    def __call__(self, messages, **kw):
        raise AssertionError("rag needs no chat call")

    def embed(self, texts):
        angles = [0.0 if text == "query" else math.radians(float(text)) for text in texts]
        found = [[2 * math.cos(a), 2 * math.sin(a)] for a in angles]

        async def later():
            return found

        return later() if self.wait else found


@pytest.mark.parametrize("wait", [False, True])
@pytest.mark.parametrize(
    "options, kept",
    [
        (dict(threshold=0.5), ["60", "10", "10"]),  # cos 60° is 0.5: the limit itself is kept
        (dict(threshold=None, top_k=1), ["10"]),
        (dict(threshold=0.6, top_k=3), ["10", "10"]),
        (dict(threshold=0.99), []),
        (dict(threshold=None), ["80", "60", "10", "170", "10"]),
    ],
)
def test_rag_keeps_the_near_ones_in_order(wait, options, kept):
    ask, memories = Vectors(wait), ["80", "60", "10", "170", "10"]
    if wait:
        node = asyncio.run(astructure(memories, "rag", query="query", structurer="e/m", ask=ask, **options))
    else:
        node = structure(memories, "rag", query="query", structurer="e/m", ask=ask, **options)
    assert [memory.text for memory in node.all_memories()] == kept and node.label is None and not node.children


def test_rag_of_nothing_is_a_valid_context():
    assert structure([], "rag", query="q") == Node(None)
    assert structure(["Plays the cello."], "rag", query="Tax law?", threshold=1.0).all_memories() == []


# --- hit against chance ---------------------------------------------------------------------------


def test_hit_rate_against_every_deal_of_the_memories():
    def entry(k, label, n):
        return Entry(f"e{k}", wrap_memories(["x"] * n), "q", "cross_domain", label)

    entries = [entry(1, "fruit", 2), entry(2, "sea", 1), entry(3, "lost", 2), entry(4, None, 1)]
    sorted_as = [["apples", "boats"], ["cats"], ["apples", "cats"], ["boats"]]
    nodes = [
        Node(None, children=tuple(Node(d, (Memory(str(k), "x"),)) for k, d in enumerate(domains)))
        for domains in sorted_as
    ]
    pool = [d for domains in sorted_as[:3] for d in domains]  # the entry without a label is left out

    def dealt(accepted, n):  # every way to deal n of the pool's memories to an entry
        hands = list(combinations(pool, n))
        return sum(accepted in hand for hand in hands) / len(hands)

    table = hit_rate(nodes, entries, ABC).set_index("labels")
    assert table.loc["all", "n"] == 3 and table.loc["all", "hit"] == pytest.approx(2 / 3)
    assert table.loc["all", "chance"] == pytest.approx((dealt("apples", 2) + dealt("boats", 1) + dealt("cats", 2)) / 3)
    assert table.loc["without homeless", "hit"] == pytest.approx(1 / 2)
    assert table.loc["without homeless", "chance"] == pytest.approx((dealt("apples", 2) + dealt("boats", 1)) / 2)
    with pytest.raises(InputError, match="one length"):
        hit_rate(nodes[:1], entries, ABC)
    with pytest.raises(InputError, match="does not map"):
        hit_rate(nodes[:1], [entry(1, "what", 2)], ABC)


def test_a_node_outside_the_taxonomy_is_a_fault():
    with pytest.raises(StructmemError, match="neither was given nor opened"):
        registry.build(wrap_memories(["a"]), structurers.Sorting((("dogs",),)), ABC)
