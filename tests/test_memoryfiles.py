"""Files of memories: every shape that is read, every item kept or left out once, and what is refused."""

from __future__ import annotations

import datetime as dt
import io
import json
import re
import warnings
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import structmem
from structmem import cli, load_memories
from structmem.errors import InputError
from structmem.memoryfiles import read_memory_file
from structmem.memorytext import text_items
from structmem.sentences import sentences

DAY = "2026-06-15"
NAME = "file"


def write(folder: Path, content: object, name: str = NAME) -> Path:
    data = content if isinstance(content, bytes | str) else json.dumps(content, ensure_ascii=False)
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def read(folder: Path, content: object, **options):
    return read_memory_file(write(folder, content), **{"on": DAY} | options)


def mem0(number: str, text: object, **fields) -> dict:
    return {"id": number, "memory": text, "user_id": "ada", "created_at": "2026-01-02T03:04:05-07:00"} | fields


def item(key: str, value: object, *namespace: str, **fields) -> dict:
    return {"namespace": list(namespace) or ["memories", "ada"], "key": key, "value": value} | fields


def fact(uuid: str, text: object, valid=None, invalid=None, expired=None, **fields) -> dict:
    dates = {"valid_at": valid, "invalid_at": invalid, "expired_at": expired}
    return {"uuid": uuid, "name": "IS", "fact": text, "created_at": "2026-02-03T00:00:00Z"} | dates | fields


MARKDOWN = """# Me

Some plain line.
- tea
* rain
  and fog

  and mist
- Work:
  - bees
    - queens
  - [x] wasps
1. one
2) two
- [2026-03-04] - dated
---
## Places
Oslo
**Food**
・抹茶
I dislike:
- noise
Not under it.

Underlined
===
[2024] moved
#tag
```
fenced
```
"""
MARKDOWN_READ = [
    ("Some plain line.", "file line 3 under Me", None),
    ("tea", "file line 4 under Me", None),
    ("rain\nand fog\n\nand mist", "file line 5 under Me", None),
    ("bees", "file line 10 under Me > Work", None),
    ("queens", "file line 11 under Me > Work", None),
    ("wasps", "file line 12 [x] under Me > Work", None),
    ("one", "file line 13 under Me", None),
    ("two", "file line 14 under Me", None),
    ("dated", "file line 15 under Me", "2026-03-04"),
    ("Oslo", "file line 18 under Me > Places", None),
    ("抹茶", "file line 20 under Me > Places > Food", None),
    ("noise", "file line 22 under Me > Places > Food > I dislike", None),
    ("Not under it.", "file line 23 under Me > Places > Food", None),
    ("[2024] moved", "file line 27 under Underlined", None),
    ("#tag", "file line 28 under Underlined", None),
    ("fenced", "file line 30 under Underlined", None),
]
CHATGPT = """Here is what I know:
```
# Model Set Context

1. [2025-01-02]. User keeps bees.

2. [2025-02-03]. User has a recipe:
- 2 eggs
1. milk

# User Knowledge Memories
Not one of them.
"""
NOTES = {"label": "notes", "value": "Sails."}
LETTA = {
    "agents": [{"id": "agent-0", "name": "Sam", "block_ids": ["b0", "b1", "b2"], "memory_blocks": [NOTES]}],
    "groups": [],
    "blocks": [
        {"id": "b0", "label": "human", "value": "\nFirst name: Ada\nKeeps bees.\n"},
        {"id": "b1", "label": "persona", "value": "I am Sam."},
        {"id": "b2", "label": "projects", "value": "- A boat"},
        {"id": "b3", "label": "human", "value": ""},
    ],
}
LETTA_READ = [
    ("First name: Ada", "letta:b0/human line 2", None),
    ("Keeps bees.", "letta:b0/human line 3", None),
    ("A boat", "letta:b2/projects line 1", None),
    ("Sails.", "letta:block 5/notes line 1", None),
]
CLAUDE = {
    "conversations_memory": "**Work context**\n\nWorks with Dr. Smith. Walks 3.5 km.\n\n**Personal**\n"
    "猫が好き。東京に住む。",
    "project_memories": {"p-1": "**Purpose**\n- A book. On bees."},
    "account_uuid": "u",
    "memory_files": [
        {
            "path": "/profile.md",
            "content": "---\nname: profile\n---\n- [stated] Metric",
            "updated_at": f"{DAY}T01:00:00Z",
        }
    ],
}
CLAUDE_READ = [
    ("Works with Dr. Smith.", "claude:conversations_memory/Work context line 3", None),
    ("Walks 3.5 km.", "claude:conversations_memory/Work context line 3", None),
    ("猫が好き。", "claude:conversations_memory/Personal line 6", None),
    ("東京に住む。", "claude:conversations_memory/Personal line 6", None),
    ("A book. On bees.", "claude:project_memories/p-1/Purpose line 2", None),
    ("[stated] Metric", "claude:memory_files/profile.md line 4", DAY),
]
MEM0_ITEMS = [
    mem0("1", "Keeps bees", updated_at=None),
    mem0("2", " Keeps bees ", updated_at="2026-05-06T00:00:00Z"),
    {"id": "3", "data": "Learns Welsh", "user_id": "ada"},
    mem0("4", "Trial", expiration_date=DAY),
]
MEM0_PAGES = [
    {"count": 4, "next": "more", "results": MEM0_ITEMS[:2]},
    {"count": 4, "next": None, "results": MEM0_ITEMS[2:]},
]
MEM0_READ = [
    ("Keeps bees", "mem0:1", "2026-01-02"),
    (" Keeps bees ", "mem0:2", "2026-05-06"),
    ("Learns Welsh", "mem0:3", None),
    ("Trial", "mem0:4", "2026-01-02"),
]
LANGMEM = [
    item(
        "k1", {"kind": "Memory", "content": {"content": "Keeps bees"}}, created_at="2026-01-01", updated_at="2026-01-05"
    ),
    item("k2", {"content": "Learns Welsh"}, created_at="2026-01-01T00:00:00+00:00"),
    item("k3", {"data": "Rows"}),
    item("k4", "Sails"),
]
LANGMEM_READ = [
    ("Keeps bees", "langgraph:memories/ada/k1", "2026-01-05"),
    ("Learns Welsh", "langgraph:memories/ada/k2", "2026-01-01"),
    ("Rows", "langgraph:memories/ada/k3", None),
    ("Sails", "langgraph:memories/ada/k4", None),
]
MEM0_DATES = [
    mem0("1", "a", updated_at="soon"),
    mem0("2", "b", created_at=1767225600),
    mem0("3", "c", expiration_date="soon"),
]
CODE = "# Me\n- a\n```python\n# x\n- y\n```\n<!-- made\n- z -->\n"
CODE += "| Who | Likes |\n|:--|---|\n| Ada | tea |\n\nA | B\n-|-\nc | d\n"
CODE_READ = [
    ("a", "file line 2 under Me", None),
    ("```python\n# x\n- y\n```", "file line 3 under Me", None),
    ("| Ada | tea |", "file line 11 under Me", None),
    ("c | d", "file line 15 under Me", None),
]
CHATGPT_READ = [
    ("User keeps bees.", "chatgpt:1", "2025-01-02"),
    ("User has a recipe:\n- 2 eggs\n1. milk", "chatgpt:2", "2025-02-03"),
]


def lines(*found: tuple[str, int], what: str = "line") -> list[tuple]:
    return [(text, f"file {what} {number}", None) for text, number in found]


def items(*texts: str) -> list[tuple]:
    return lines(*((text, number) for number, text in enumerate(texts, start=1)), what="item")


OBJECTS = [
    {"text": "a", "created_at": "2026-01-02T03:04:05Z", "metadata": {"x": 1}, "user": "ada"},
    {"text": "b", "source": "me", "updated_at": "2026-03-04", "category": "food", "tags": [], "user_id": "ada"},
]
JAPANESE = "■仕事\n①東京で働く\n(1) 猫\n（2）犬\n1)鳥\n【健康】\n・薬を飲む\n1.5倍\n■よく走る。\n【無】\n"
JAPANESE_READ = [
    ("東京で働く", "file line 2 under 仕事", None),
    ("猫", "file line 3 under 仕事", None),
    ("犬", "file line 4 under 仕事", None),
    ("鳥", "file line 5 under 仕事", None),
    ("薬を飲む", "file line 7 under 健康", None),
    ("1.5倍", "file line 8 under 健康", None),
    ("■よく走る。", "file line 9 under 健康", None),
]
QUOTES_READ = [
    ("tea", "file line 2 under Likes", None),
    ("green", "file line 3 under Likes", None),
    ("Rows.", "file line 5", None),
    (">5 km a day", "file line 6", None),
]
# Name, content, rows of (text, source, date), what is said (None: nothing).
SHAPES = [
    ("markdown", MARKDOWN, MARKDOWN_READ, None),
    ("CRLF", "Keeps bees.\r\n\r\nLearns\u2028Welsh.\r\n", lines(("Keeps bees.", 1), ("Learns\u2028Welsh.", 3)), None),
    ("UTF-16", "Prüft\nläuft".encode("utf-16"), lines(("Prüft", 1), ("läuft", 2)), None),
    ("a list of strings", "\ufeff" + json.dumps(["a", "a", " b "]), items("a", "a", " b "), None),
    ("lines of strings", '"a"\n\n"b"\n', items("a", "b"), None),
    ("lines of objects", '{"text": "a", "source": "me", "date": "spring"}\n{"text": "b"}',
     [("a", "me", "spring"), ("b", "file item 2", None)], None),
    ("quotes that are no JSON", '"Dune" is read\n"x"', lines(('"Dune" is read', 1), ('"x"', 2)), None),
    ("objects with more fields", OBJECTS, [("a", "file item 1", "2026-01-02"), ("b", "me", "2026-03-04")],
     "2 memories; other fields are not read: metadata, category"),
    ("an empty list", "[]", [], "0 memories; the file holds no memories"),
    ("an empty file", " \n", [], "0 memories; the file holds no memories"),
    ("an empty page", {"results": []}, [], "0 memories; the file holds no memories"),
    ("Japanese marks", JAPANESE, JAPANESE_READ, r"1 left out: heading with nothing below it \(1\)"),
    ("quotes", "> Likes:\n> - tea\n>   - green\n>\n>> Rows.\n>5 km a day", QUOTES_READ, None),
    ("prose with commas", "Tea, text, memory\nfact, content, jam\n", lines(("Tea, text, memory", 1),
     ("fact, content, jam", 2)), None),
    ("mem0 list", {"count": 4, "next": None, "previous": None, "results": MEM0_ITEMS}, MEM0_READ, None),
    ("mem0 bare", MEM0_ITEMS, MEM0_READ, None),
    ("mem0 lines", "\n".join(map(json.dumps, MEM0_ITEMS)), MEM0_READ, None),
    ("mem0 one", MEM0_ITEMS[0], MEM0_READ[:1], None),
    ("mem0 pages", "\n".join(json.dumps(MEM0_PAGES[k]) for k in (0, 1)), MEM0_READ, None),
    ("mem0 page of more", {"count": 9, "next": "more", "results": MEM0_ITEMS[:1]}, MEM0_READ[:1],
     "this is a part of 9 items: more pages exist"),
    ("mem0 with a graph", {"results": MEM0_ITEMS[:1], "relations": [{}, {}]}, MEM0_READ[:1], r"'relations' \(2\) is"),
    ("mem0 dates", MEM0_DATES, [("a", "mem0:1", None), ("b", "mem0:2", "2026-01-01"), ("c", "mem0:3", "2026-01-02")],
     "2 dates cannot be read"),
    ("LangGraph and LangMem", LANGMEM, LANGMEM_READ, None),
    ("LangGraph found", {"items": LANGMEM}, LANGMEM_READ, None),
    ("LangMem with more fields", [item("k", {"content": "a", "importance": 3})],
     [("a", "langgraph:memories/ada/k", None)], "not read: importance"),
    ("Letta", LETTA, LETTA_READ,
     r"2 left out: the agent's own persona \(1\), empty \(1\); archival passages are not .* read too: projects, notes"),
    ("Letta in a string", json.dumps(json.dumps(LETTA, indent=1)), LETTA_READ, "persona"),
    ("Claude", [CLAUDE], CLAUDE_READ, r"1 left out: settings at the head of a file \(1\); .*best effort"),
    ("Claude, newer", CLAUDE, CLAUDE_READ, "best effort"),
    ("ChatGPT", CHATGPT, CHATGPT_READ, r"2 left out: text around the memories \(2\); .*best effort"),
    ("ChatGPT without its heading", "2. [2025-01-02]. b\n1. [unknown]. a\n",
     [("a", "chatgpt:1", None), ("b", "chatgpt:2", "2025-01-02")], "1 date cannot be read and counts as none"),
    ("code, a comment and tables", CODE, CODE_READ, r"3 left out: a comment \(1\), head of a table \(2\)"),
    ("what nothing closes", "<!-- a\n```js\n- b", lines(("<!-- a", 1), ("b", 3)), None),
    ("mem0's answer to an addition", {"results": [mem0("1", "a", event="ADD"), mem0("2", "b", event="DELETE")]},
     [("a", "mem0:1", "2026-01-02")], r"1 left out: deleted \(1\)"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "rows", "said"), [row[1:] for row in SHAPES], ids=[row[0] for row in SHAPES])
def test_a_shape_is_read_with_text_source_and_date(content, rows, said, tmp_path):
    path = write(tmp_path, content)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        memories = load_memories(path, on=DAY)
    assert [(m.text, m.source, m.date) for m in memories] == rows
    assert [m.id for m in memories] == [str(k + 1) for k in range(len(rows))]
    if said is None:
        assert not seen
    else:
        (one,) = seen
        assert one.filename == __file__
        assert one.category is UserWarning and re.search(said, str(one.message)), str(one.message)


# On 2026-06-15: whether the fact holds at the day's end, in UTC.
FACTS = [
    (fact("a", "a"), None),
    (fact("b", "b", valid="2026-06-15T23:00:00Z"), None),
    (fact("c", "c", valid="2026-06-16T00:00:00Z"), "not yet valid: 2026-06-16"),
    (fact("d", "d", valid="2026-06-16T01:00:00+02:00"), None),
    (fact("e", "e", invalid="2026-06-16T00:00:00Z"), None),
    (fact("f", "f", invalid="2026-06-15T08:00:00Z"), "no longer valid: 2026-06-15"),
    (fact("g", "g", invalid="2026-06-16T01:00:00+02:00"), "no longer valid: 2026-06-15"),
    (fact("h", "h", invalid="2027-01-01", expired="2026-01-01T00:00:00Z"), "no longer valid: 2026-01-01"),
    (fact("i", "i", valid="2020-01-01", invalid="2020-02-01"), "no longer valid: 2020-02-01"),
    (fact("l", "l", valid="0001-01-01T00:00:00+05:00", invalid="9999-12-31T23:59:59-08:00"), None),
    (fact("j", "  "), "empty"),
    (fact("k", None), "not a text: null"),
]


@pytest.mark.parametrize("wrap", [lambda facts: {"facts": facts}, lambda facts: {"edges": facts, "nodes": None}, list])
def test_only_facts_that_hold_on_the_day_are_memories(wrap, tmp_path):
    found = read(tmp_path, wrap([record for record, _ in FACTS]))
    assert [m.source for m in found.memories] == [f"zep:{f['uuid']}" for f, reason in FACTS if reason is None]
    assert [row.reason for row in found.left_out] == [reason for _, reason in FACTS if reason]
    assert found.said == (
        "file (Zep facts): 5 memories; 7 left out: not yet valid (1), no longer valid (4), empty (1), not a text (1)."
    )
    assert {m.date for m in found.memories} == {"2026-02-03"}


def test_the_day_is_today_in_utc_unless_given(tmp_path):
    today = dt.datetime.now(dt.UTC).date()
    near = [mem0(str(k), "a", expiration_date=str(today + dt.timedelta(days=k))) for k in (-2, 2)]
    assert [m.source for m in read(tmp_path, near, on=None).memories] == ["mem0:2"]
    for on in (dt.date(2026, 6, 15), dt.datetime(2026, 6, 15, 23), "2026-06-15"):
        found = read(
            tmp_path, [mem0("1", "a", expiration_date="2026-06-14"), mem0("2", "b", expiration_date=DAY)], on=on
        )
        assert [row.reason for row in found.left_out] == ["expired: 2026-06-14"] and len(found.memories) == 1
    for on in ("soon", 5):
        with pytest.raises(InputError, match="on must be a day such as 2026-03-31"):
            read(tmp_path, [], on=on)


def test_structured_data_without_a_text_is_left_out_by_its_fields_and_never_printed_as_a_dict(tmp_path):
    profile = {"kind": "Profile", "content": {"name": "Ada", "likes": {"tea": 1}}}
    found = read(
        tmp_path, [item("k1", profile), item("k2", {"rules": ["a"]}), item("k3", ["a"]), item("k4", {"content": "x"})]
    )
    assert [(row.source[-2:], row.reason, row.text) for row in found.left_out] == [
        ("k1", "structured data without a text", "(fields: name, likes)"),
        ("k2", "structured data without a text", "(fields: rules)"),
        ("k3", "not a text: a list", "(a list)"),
    ]
    assert [m.text for m in found.memories] == ["x"]


TWO = {
    "mem0": ([mem0("1", "a"), mem0("2", "b", user_id="bo")], {"ada": ["a"], "bo": ["b"]}),
    "mem0 and an agent": (
        [mem0("1", "a"), {"id": "2", "memory": "b", "agent_id": "x"}], {"ada": ["a"], "agent x": ["b"]}),
    "mem0 and nobody": ([mem0("1", "a"), mem0("2", "b", user_id=None)], {"ada": ["a"], "": ["b"]}),
    "langgraph": (
        [item("k", {"content": t}, *n)
         for t, *n in (("a", "memories", "ada"), ("b", "memories", "bo"), ("c", "own", "bo"))],
        {"memories/ada": ["a"], "memories/bo": ["b"], "own": ["c"], "ada": ["a"]},
    ),
    "langgraph with slashes": (
        [item("k", {"content": t}, *n) for t, *n in (("a", "x/y"), ("b", "x", "y"))], {"x/y": ["b"], "x%2Fy": ["a"]}),
    "langgraph by user first": (
        [item("k", {"content": t}, *n)
         for t, *n in (("a", "robin", "memories"), ("b", "robin", "prefs"), ("c", "sam", "memories"))],
        {"robin": ["a", "b"], "sam": ["c"], "robin/prefs": ["b"]},
    ),
    "langgraph in strings": (
        [item("k", {"content": t}) | {"namespace": n} for t, n in (("a", "memories/ada"), ("b", "memories/bo"))],
        {"ada": ["a"], "memories/bo": ["b"]},
    ),
    "objects": ([{"text": "a", "user_id": "u"}, {"text": "b"}], {"u": ["a"], "": ["b"]}),
    "numbers for names": ([mem0("1", "a", user_id=1), mem0("2", "b", user_id=2)], {"1": ["a"], "2": ["b"]}),
    "pages": ([{"user": "ada", "memories": ["a"]}, {"user_id": 7, "memories": ["b"]}], {"ada": ["a"], "7": ["b"]}),
    "zep of numbers": ([fact("1", "a", user_id=1), fact("2", "b", user_id=2)], {"1": ["a"], "2": ["b"]}),
    "zep": ([fact("1", "a", group_id="ada"), fact("2", "b", group_id="bo")], {"ada": ["a"], "bo": ["b"]}),
    "claude": ([{"conversations_memory": t, "account_uuid": t} for t in "ab"], {"a": ["a"], "b": ["b"]}),
    "letta": (
        {
            "agents": [{"id": "1", "name": "Sam", "block_ids": ["x", "z"]},
                       {"id": "2", "name": "Kim", "block_ids": ["y", "z"]}],
            "blocks": [{"id": n, "label": "human", "value": n} for n in "xyz"],
        },
        {"Sam": ["x", "z"], "Kim": ["y", "z"]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TWO)
def test_memories_of_two_people_are_never_mixed(name, tmp_path):
    content, users = TWO[name]
    with pytest.raises(InputError, match=r"file holds the memories of \d users, .* user must be one of \[.*got None"):
        read(tmp_path, content)
    for user, texts in users.items():
        found = read(tmp_path, content, user=user)
        assert [memory.text for memory in found.memories] == texts
        assert {row.reason for row in found.left_out} == {"of another user"}
    with pytest.raises(InputError, match=r"user must be one of \[.*got 'nobody'"):
        read(tmp_path, content, user="nobody")


def test_a_part_of_the_namespace_that_all_share_names_nobody(tmp_path):
    content = [item("k", {"content": user}, "memories", user) for user in ("ada", "bo")]
    with pytest.raises(InputError, match=r"'memories/ada', 'memories/bo'\], got 'memories'"):
        read(tmp_path, content, user="memories")
    both = [item("k", {"content": "a"}, "robin", part) for part in ("memories", "prefs")]
    found = read(tmp_path, both, user="robin")
    assert len(found.memories) == 2 and "2 namespaces were read: robin/memories, robin/prefs" in found.said
    other = [*both, item("k", {"content": "a"}, "sam", "memories"), item("k", {"content": "a"}, "sam", "prefs")]
    for shared in ("memories", "prefs"):
        with pytest.raises(InputError, match=f"got '{shared}'"):
            read(tmp_path, other, user=shared)


def test_a_user_is_named_only_where_the_file_names_users(tmp_path):
    assert len(read(tmp_path, [mem0("1", "a")], user="ada").memories) == 1
    assert len(read(tmp_path, LETTA, user="Sam").memories) == len(LETTA_READ)
    for content in ("Keeps bees.", ["a"]):
        with pytest.raises(InputError, match="names no users; leave user out, got 'ada'"):
            read(tmp_path, content, user="ada")
    many = [mem0(str(k), "a", user_id=f"u{k}") for k in range(30)]
    with pytest.raises(InputError, match=r"memories of 30 users, which are never mixed \(and 10 more\)"):
        read(tmp_path, many)


REFUSED = [
    ("broken list", '["a", "b"', "line 1 looks like JSON but cannot be read: the end of the file"),
    ("broken lines", '{"memory": "a"}\n{"memory": \n', "line 2 looks like JSON"),
    ("cut", '{"text": "a"}\n{"text": "b', "line 2 looks like JSON .* may have been cut"),
    ("deep", "[" * 100_000, "line 1 looks like JSON .*(recursion|nest)"),
    ("deep and whole", '{"a":' * 900 + "1" + "}" * 900, "objects with the fields a, of no shape that is known"),
    ("numbers", "[1, 2]", "holds a number, of no shape"),
    ("fields", [{"name": "x", "colour": "y"}], "fields name, colour, of no shape .* expected a JSON list"),
    ("entries", [{"query": "q?", "memories": ["a"]}], r"holds entries .*; read them with load_entries\.$"),
    ("entries as lines", '{"query": "q?", "memories": ["a"]}\n' * 2, "read them with load_entries"),
    ("conversations", [{"title": None, "mapping": {}}], "seems to be an export of ChatGPT conversations; nothing"),
    ("conversations of Claude", [{"uuid": "u", "chat_messages": []}], "seems to be an export of Claude conversations"),
    ("a zip archive", b"PK\x03\x04" + bytes(30), "zip archive"),
    ("legacy bytes", "Café".encode("cp1252"), "byte 0xe9 .* expected UTF-8"),
    ("Shift_JIS", "犬が好き\n".encode("cp932"), "read as Japanese in cp932: iconv -f cp932 -t utf-8 file > new"),
    ("Shift_JIS of kanji", "東京在住\n".encode("cp932"), "iconv -f cp932"),
    ("EUC-JP", "犬が好き\n".encode("euc_jp"), "read as Japanese in euc-jp: iconv -f euc-jp -t utf-8 file > new"),
    ("French", "créé par été\n".encode("cp1252"), "older Windows program: iconv -f cp1252"),
    ("CSV", 'id,memory,user_id\n1,"Tea, green",ada\n2,Rows,bo\n', r"looks like a table \(columns id, memory, user_id"),
    ("CSV without quotes", ",user_id,text\n1,ada,Tea, green\n2,bo,Rows\n3,bo,Sails\n", "looks like a table"),
    ("TSV", "text\tuser\r\nTea\tada\r\nRows\t\r\n", "looks like a table .*JSON lines"),
    ("an older Letta file", {"core_memory": [], "messages": []}, "seems to be an older Letta agent file; nothing"),
    ("nulls", "a\x00b", "null characters"),
    ("a partition", {"label": "", "memories": [], "children": [{"label": "x"}]}, "seems to be a partition"),
    ("rich text", "{\\rtf1 a}", "rich text document; save it as plain text"),
    ("nothing", "null\n", "holds null and nothing else"),
    ("a page", "<!DOCTYPE html><p>Keeps bees.", "HTML or XML"),
    ("a mixture", [mem0("1", "a"), fact("2", "b")], "mixes items of mem0, Zep facts"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "says"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_what_is_no_file_of_memories_is_refused_in_one_sentence(content, says, tmp_path):
    with pytest.raises(InputError, match=says) as error:
        read(tmp_path, content)
    assert "\n" not in str(error.value)


def test_json_values_that_are_no_texts_are_never_taken_for_one(tmp_path):
    strange = (
        '{"id": "1", "memory": NaN}',
        '{"id": "2", "memory": "a", "memory": "b"}',
        r'{"id": "3", "memory": "\ud800"}',
        '{"id": "4", "memory": "x", "score": NaN}',
        "7",
    )
    found = read(tmp_path, "\n".join(strange))
    assert [(row.source, row.reason.split(" (")[0]) for row in found.left_out] == [
        ("mem0:1", "not a text: NaN"),
        ("mem0:2", "not a text: given 2 times"),
        ("mem0:3", "unsound text: broken at character 1"),
        ("file item 5", "not a text: a number"),
    ]
    assert [m.source for m in found.memories] == ["mem0:4"]


def test_a_heading_with_nothing_below_and_an_empty_bullet_are_counted(tmp_path):
    found = read(tmp_path, "# Title\n## Nothing\n## More\n-\n- a\n**Last**\n")
    assert [(row.source, row.reason, row.text) for row in found.left_out] == [
        ("file line 2", "heading with nothing below it", "Nothing"),
        ("file line 4 under Title > More", "empty", ""),
        ("file line 6", "heading with nothing below it", "Last"),
    ]
    assert found.said == "file (a text): 1 memory; 3 left out: heading with nothing below it (2), empty (1)."


TEXTS = st.sampled_from(["Keeps bees", "  ", "", "Keeps bees", "猫", None, 7, ["a"], {"a": 1}, "\u200b"])
DATES = st.sampled_from([None, "", "2026-01-01", "2027-01-01T00:00:00Z", "soon", 5, [], "2026-06-15"])
ITEMS = {
    "mem0": st.builds(lambda text, end: mem0("", text, expiration_date=end), TEXTS, DATES),
    "zep": st.builds(lambda text, *dates: fact("", text, *dates), TEXTS, DATES, DATES, DATES),
    "langgraph": st.builds(lambda text: item("", text), TEXTS | st.builds(lambda text: {"content": text}, TEXTS)),
    "list": TEXTS,
}
FIELDS = {"mem0": "id", "zep": "uuid", "langgraph": "key"}


@pytest.mark.parametrize("kind", ITEMS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_item_ends_as_a_memory_or_is_left_out_exactly_once(kind, data, tmp_path):
    items = data.draw(st.lists(ITEMS[kind], max_size=8))
    items.append({"mem0": mem0("", "x"), "zep": fact("", "x"), "langgraph": item("", "x"), "list": "x"}[kind])
    for number, found in enumerate(items, start=1):
        if kind in FIELDS:
            found[FIELDS[kind]] = str(number)
    found = read(tmp_path, items)
    places = [row.source.split()[-1].split(":")[-1].split("/")[-1] for row in (*found.memories, *found.left_out)]
    assert Counter(places) == Counter(str(k) for k in range(1, len(items) + 1))
    order = [int(m.source.split()[-1].split(":")[-1].split("/")[-1]) for m in found.memories]
    assert order == sorted(order) and all(m.text in ("Keeps bees", "猫", "x") for m in found.memories)


WORDS = st.builds("{}{}c".format, st.sampled_from("ab猫é("), st.text(st.sampled_from("a 猫.!,)'\"5*:-"), max_size=9))
TREES = st.recursive(
    st.tuples(WORDS, st.just([])), lambda below: st.tuples(WORDS, st.lists(below, max_size=2)), max_leaves=6
)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.lists(TREES, min_size=1, max_size=2)), max_size=3),
    st.sampled_from(["-", "*", "+", "1.", "12)", "- [ ]", "・"]),
    st.sampled_from([2, 4]),
    st.sampled_from(["\n", "\r\n", "\n\n"]),
)
def test_a_markdown_list_is_read_item_by_item_in_order(sections, mark, step, end):
    lines, expected = [], []

    def put(tree, depth):
        text, below = tree
        lines.append(" " * (step * depth) + f"{mark} {text}")
        expected.append(text)
        for child in below:
            put(child, depth + 1)

    for number, (headed, trees) in enumerate(sections):
        if headed:
            lines.append(f"## Part {number}")
        for tree in trees:
            put(tree, 0)
    read_back = text_items(end.join(lines))
    assert [found.text for found in read_back] == expected and not any(found.reason for found in read_back)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                "- a",
                "  b",
                "# c",
                "",
                "    - d",
                "**e**",
                "f:",
                "```",
                "```py",
                "---",
                "===",
                "g",
                "\t- h",
                "1. i",
                "- ",
            ]
        )
    )
)
def test_whatever_the_lines_every_word_stays_in_an_item_or_above_one(lines):
    found = text_items("\n".join(lines))
    text = "".join(item.text for item in found)
    for line in ("- a", "    - d", "\t- h", "1. i"):  # list items, which no line below can make a heading
        assert text.count(line[-1]) == lines.count(line)
    seen = {letter for item in found for letter in "".join((item.text, *item.under)) if letter in "abcdefghi"}
    assert seen == {letter for line in lines for letter in line if letter in "abcdefghi"}


SENTENCES = [
    ("Sees Dr. Smith. Runs 3.5 km, e.g. at dawn.", ["Sees Dr. Smith.", "Runs 3.5 km, e.g. at dawn."]),
    ("J. Doe lives in the U.S. Navy base! Really? Yes…", ["J. Doe lives in the U.S. Navy base!", "Really?", "Yes…"]),
    ("猫が好き。「はい。」と言う。東京に住む！", ["猫が好き。", "「はい。」と言う。", "東京に住む！"]),
    ("Am 3. Mai geboren. Wohnt in Köln.", ["Am 3. Mai geboren.", "Wohnt in Köln."]),
    ("Born in 1984. Likes tea", ["Born in 1984.", "Likes tea"]),
    (
        'Said "I left. He stayed." Then “Go.” Then a 27" screen. End.',
        ['Said "I left. He stayed."', "Then “Go.”", 'Then a 27" screen.', "End."],
    ),
    ('Says "Go." Then goes (as ever. Always.) home.', ['Says "Go."', "Then goes (as ever. Always.) home."]),
    ("हिंदी बोलता है। चाय पीता है।", ["हिंदी बोलता है।", "चाय पीता है।"]),
    ("No stop", ["No stop"]),
    ("Uses No. 5. Reads v1.2. Then sleeps.", ["Uses No. 5. Reads v1.2.", "Then sleeps."]),
]


@pytest.mark.parametrize(("line", "parts"), SENTENCES)
def test_prose_is_split_after_sentences_only(line, parts):
    assert sentences(line) == parts


@settings(max_examples=50, deadline=None)
@given(st.text(st.sampled_from("aB\".。!？ 」「(5)…'"), max_size=40))
def test_splitting_loses_nothing_but_space(line):
    assert "".join("".join(sentences(line)).split()) == "".join(line.split())


def test_standard_input_and_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cli, "_plain_warnings", lambda: None)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"- Keeps bees.\n")))
    assert [(m.text, m.source) for m in load_memories("-")] == [("Keeps bees.", "standard input line 1")]
    path = write(tmp_path, [mem0("1", "Keeps bees."), mem0("2", "Rows.", user_id="bo")], "mem0.json")
    arguments = ["structure", str(path), "--structure", "flat", "--renderer", "bullets"]
    assert cli.main(arguments) == 2
    assert "mem0.json holds the memories of 2 users" in capsys.readouterr().err
    with pytest.warns(UserWarning, match=r"mem0.json \(mem0\): 1 memory; 1 left out: of another user \(1\)"):
        assert cli.main([*arguments, "--user", "bo", "--on", DAY]) == 0
    assert capsys.readouterr().out == "<memories>\n- Rows.\n</memories>\n"


def test_memories_of_a_file_can_be_laid_out_at_once(tmp_path):
    node = structmem.structure(load_memories(write(tmp_path, "Keeps bees.\nKeeps bees.\n")), "flat")
    assert sorted(m.source for m in node.all_memories()) == ["file line 1", "file line 2"]
