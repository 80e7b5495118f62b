"""Shadow: what is asked, what is counted, what the review sheet hides, and what it refuses to read."""

from __future__ import annotations

import csv
import json
import os
import statistics
from math import comb
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from structmem import cli
from structmem.calls import Call
from structmem.data import Memory
from structmem.errors import BudgetReached, InputError
from structmem.llm import Client
from structmem.renderers import render
from structmem.shadow import AGAIN, FLAT, STRUCTURED, Prompt, Setting, messages_of, read_prompts, shadow
from structmem.shadow_measures import changes, numbers, report, shared_content
from structmem.shadow_sheet import read_review, review_words, write_sheet
from structmem.structures import structure

MEMORIES = [f"User fact {k} about {what}." for k, what in enumerate(("peanuts", "a loan", "the oboe", "Oslo", "tea"))]
ASKED: list = []


def counting(messages, request):
    """Answers by arm; counts every call, and words for tokens."""
    ASKED.append(request)
    text = " ".join(message["content"] for message in messages)
    if "broken" in text and request.tags["structure"] == "fixed":
        raise RuntimeError("the server is down")
    if "same" in text:
        said = "=1+1 is always said"
    else:
        said = f"{request.tags['structure']} says {messages[-1]['content']} {request.replicate * ('noisy' in text)}"
    return {"text": said, "input_tokens": len(text.split()), "output_tokens": len(said.split())}


def sorter(messages):
    said = messages[-1]["content"]
    numbered = [line.split(".")[0] for line in said.split("\n") if ". " in line]
    return json.dumps({"assignments": {k: "health" if int(k) % 2 else "housing" for k in numbered}})


counting.model_id, sorter.model_id = "shadow-counting", "shadow-sorter"
SETTING = Setting(counting, "fixed", sorter, temperature=0)
QUERIES = ("first", "same", "noisy third", "broken", "fifth", "noisy sixth")


def prompts() -> list[Prompt]:
    found = []
    for k, query in enumerate(QUERIES):
        texts = MEMORIES[: 2 + k % 3]
        found.append(Prompt(k + 1, query, tuple(Memory(str(i), text) for i, text in enumerate(texts))))
    return found


@pytest.fixture(scope="module")
def rows():
    with Client(":memory:") as client:
        first = shadow(prompts(), SETTING, client)
        made = len(ASKED)
        again = shadow(prompts(), SETTING, client)
        # What has an answer is not asked twice; what has failed is.
        lost = int((first["status"] != "ok").sum())
        assert lost == 1 and len(ASKED) - made == made - (3 * len(QUERIES) - lost)
    assert again["from_store"].sum() == 3 * len(QUERIES) - lost and not first["from_store"].any()
    same = ["line", "arm", "status", "response", "input_tokens", "n_unclassified"]
    pd.testing.assert_frame_equal(first[same], again[same])
    return first


def test_every_prompt_is_asked_once_in_every_arm_with_its_own_layout(rows):
    by = {(request.tags["prompt"], request.tags["structure"], request.replicate): request for request in ASKED}
    assert len(by) == 3 * len(QUERIES) == len(rows)
    for prompt in prompts():
        sorted_ = structure(prompt.memories, "fixed", structurer=sorter, ask=lambda chat, **_: sorter(chat))
        nodes = {"flat": structure(prompt.memories, "flat"), "fixed": sorted_}
        laid_out = {name: str(render(node, "markdown")) for name, node in nodes.items()}
        for name, replicate in (("flat", 0), ("flat", 1), ("fixed", 0)):
            request = by[prompt.line, name, replicate]
            assert request.messages == messages_of(prompt, laid_out[name], SETTING)
            assert request.memories == tuple(memory.text for memory in prompt.memories)


def test_numbers_are_paired_means(rows):
    table = numbers(rows).set_index("measure")
    pairs = {}
    for row in rows.to_dict("records"):
        if row["status"] == "ok":
            pairs.setdefault(row["line"], {})[row["arm"]] = row
    both = [pair for pair in pairs.values() if {FLAT, STRUCTURED} <= set(pair)]
    for name, label in (("input_tokens", "input tokens"), ("output_tokens", "output tokens")):
        mine = table.loc[label]
        assert mine["n"] == len(both) == 5 and mine["n_left_out"] == 1
        for arm in (FLAT, STRUCTURED):
            assert mine[arm] == pytest.approx(statistics.mean(pair[arm][name] for pair in both))
        assert mine["difference"] == pytest.approx(mine[STRUCTURED] - mine[FLAT])
        gaps = [pair[STRUCTURED][name] - pair[FLAT][name] for pair in both]
        assert mine["difference"] == pytest.approx(statistics.mean(gaps))
    # Output tokens: every prompt by itself, the plain t interval; 2.776 is its quantile with 4 degrees of freedom.
    gaps = [pair[STRUCTURED]["output_tokens"] - pair[FLAT]["output_tokens"] for pair in both]
    if statistics.pstdev(gaps):
        half = 2.7764451 * statistics.stdev(gaps) / 5**0.5
        assert table.loc["output tokens", "high"] == pytest.approx(statistics.mean(gaps) + half)
    else:
        assert table.loc["output tokens", "reason"] == "all differences are equal"


def made_rows(answers, *, sets=None, apart_h=0.0, latency=(1.0, 2.0)) -> pd.DataFrame:
    """Rows of prompts from their three answers."""
    found = []
    for k, three in enumerate(answers):
        for arm, said in zip((FLAT, STRUCTURED, AGAIN), three, strict=True):
            at = pd.Timestamp("2026-03-01", tz="UTC") + pd.Timedelta(hours=apart_h * (arm == STRUCTURED))
            found.append(
                {"line": k + 1, "arm": arm, "generation": 0, "status": "ok" if said else "no_response"}
                | {"reason": "" if said else "timeout", "detail": "", "query": "q", "response": said}
                | {"truncated": False, "input_tokens": 10.0 + 5 * (arm == STRUCTURED) + k, "output_tokens": 3.0}
                | {"cost_usd": np.nan, "latency_s": latency[arm == STRUCTURED] + k, "called_at": at.isoformat()}
                | {"from_store": False, "n_memories": 4, "n_shown": 4, "n_unclassified": 1}
                | {"memory_set": k if sets is None else sets[k], "same_prompt": False}
            )
    return pd.DataFrame(found)


def test_changed_answers_stand_beside_what_changes_by_chance():
    answers = [("a", "b", "a"), ("a", "b", "c"), ("a", "a", "a"), ("a", "b", "a"), ("a", "", "a")]
    found = changes(made_rows(answers))
    assert (found["n"], found["n_left_out"]) == (4, 1)
    assert (found["changed"], found["changed_again"]) == (3, 1)
    assert found["difference_pp"] == pytest.approx(50)
    # Wilson for 3 of 4 and 1 of 4, from his formula with z = 1.96.
    assert (found["low"], found["high"]) == pytest.approx((0.3006, 0.9544), abs=1e-3)
    assert (found["again_low"], found["again_high"]) == pytest.approx((0.0456, 0.6994), abs=1e-3)
    assert found["difference_low"] < 0 < found["difference_high"] <= 100


def test_one_layout_for_both_is_nothing_to_compare():
    rows = made_rows([("a", "b", "a"), ("a", "b", "c"), ("a", "a", "z")]).assign(same_prompt=lambda t: t["line"] == 3)
    found, table = changes(rows), numbers(rows).set_index("measure")
    assert (found["n"], found["n_left_out"], found["changed"], found["changed_again"]) == (2, 1, 2, 1)
    assert table["n"].to_dict() == {"input tokens": 3, "output tokens": 3, "latency, s": 2}
    assert "1 of 3 prompts read the same" in "\n".join(report(rows, SETTING))


def test_shared_content_is_one_for_equal_and_zero_for_other_answers():
    one = "Grilled salmon with lemon, rice and steamed broccoli."
    assert shared_content(one, one) == 1.0
    assert shared_content("Yes.", "Yes!") == shared_content("はい", "はい。") == 1.0
    assert shared_content("Yes.", "No.") == shared_content("魚がいい", "自転車旅行") == 0.0
    assert shared_content(one, "Bicycle tours around northern glaciers.") == 0.0
    half = shared_content(one, "Grilled salmon, and bicycle tours around glaciers.")
    assert 0 < half < 1 and half == shared_content("Grilled salmon, and bicycle tours around glaciers.", one)


def test_one_memory_set_has_no_interval_for_its_own_difference():
    table = numbers(made_rows([("a", "b", "c")] * 4, sets=[0] * 4)).set_index("measure")
    assert table.loc["input tokens", "difference"] == 5
    assert np.isnan(table.loc["input tokens", "low"]) and "one memory set" in table.loc["input tokens", "reason"]


def test_latencies_of_different_times_are_not_compared():
    table = numbers(made_rows([("a", "b", "c")] * 3, apart_h=2)).set_index("measure")
    assert (table.loc["latency, s", "n"], table.loc["latency, s", "n_left_out"]) == (0, 3)
    assert table.loc["input tokens", "n"] == 3
    table = numbers(made_rows([("a", "b", "c")] * 3, apart_h=0.5)).set_index("measure")
    assert table.loc["latency, s", ["flat", "structured", "difference"]].tolist() == [2.0, 3.0, 1.0]


def test_the_report_counts_what_is_missing_by_arm_and_reason(rows):
    said = "\n".join(report(rows, SETTING))
    assert "fixed: 5 of 6 answers: error 1" in said and "flat again: 6 of 6 answers\n" in said
    assert "shadow-counting: fixed (sorted by shadow-sorter) against flat" in said
    # first, third, fifth and sixth differ by arm, the second never; again only the noisy ones do.
    assert "Changed answers, fixed against flat: 4 of 5" in said
    assert "Changed answers, flat again against flat: 2 of 5" in said
    nothing = rows.assign(status="no_response", reason="not_asked", response=None, called_at=None)
    assert "no prompt has all three answers" in "\n".join(report(nothing, SETTING))


def test_generations_of_a_prompt_are_no_independent_prompts():
    setting = Setting(counting, "fixed", sorter, temperature=1.0, generations=3)
    with Client(":memory:") as client:
        rows = shadow(prompts()[:3], setting, client)
    assert len(rows) == 27
    found = changes(rows)
    assert found["n"] == 9 and found["changed"] == 6 and found["changed_again"] == 3
    assert numbers(rows)["n"].tolist() == [3, 3, 3]
    with pytest.raises(InputError, match="temperature 0"):
        Setting(counting, "fixed", sorter, temperature=0, generations=2)


def test_a_spent_budget_leaves_rows_that_were_not_asked(monkeypatch):
    asked = []

    async def acall(self, request, accept=None):
        asked.append(request)
        if len(asked) > 4:
            raise BudgetReached("The budget is spent.")
        return Call("0" * 64, "ok", text="said", called_at="2026-01-01T00:00:00+00:00")

    monkeypatch.setattr(Client, "acall", acall)
    with Client(":memory:") as client:
        rows = shadow(prompts(), SETTING, client)
    assert rows.attrs["stopped"] == "The budget is spent."
    assert (rows["status"] == "ok").sum() == 4 and set(rows["reason"]) == {"", "not_asked"}
    assert len(rows) == 3 * len(QUERIES)


def test_a_structurer_that_fails_takes_no_flat_answer_with_it():
    def down(messages):
        raise RuntimeError("no connection")

    down.model_id = "shadow-down"
    with Client(":memory:", max_retries=0) as client:
        rows = shadow(prompts()[:2], Setting(counting, "fixed", down, temperature=0), client)
    lost = rows[rows["status"] != "ok"]
    assert set(lost["arm"]) == {STRUCTURED} and set(lost["reason"]) == {"no_structure"}
    assert lost["detail"].str.contains("no connection").all() and len(rows) == 6


def test_without_memories_there_is_nothing_to_compare():
    with Client(":memory:") as client:
        rows = shadow([Prompt(1, "none", ())], SETTING, client)
    assert rows["same_prompt"].all() and rows["response"].notna().all()
    assert changes(rows)["n"] == 0


# -- prompts ----------------------------------------------------------------------------------------------------------


def test_prompts_are_queries_or_chats(tmp_path):
    file = tmp_path / "p.jsonl"
    chat = [{"role": "system", "content": "Be {kind}. {memories}"}, {"role": "user", "content": "Hi"}]
    chat += [{"role": "assistant", "content": "Hello"}, {"role": "user", "content": "Now?"}]
    records = [{"query": "What?", "memories": ["One."]}, {"messages": chat, "id": 7}, {"messages": chat[1:]}]
    file.write_text("\n".join(map(json.dumps, records)))
    one, two, three = read_prompts(file, [Memory("m", "Shared.")])
    assert (one.line, one.query, one.memories[0].text, one.before) == (1, "What?", "One.", ())
    assert (two.query, two.memories[0].id, len(two.before)) == ("Now?", "m", 3)
    told = messages_of(two, "<memories>\n- Shared.\n</memories>", SETTING)
    assert [turn["role"] for turn in told] == ["system", "user", "assistant", "user"]
    assert told[0]["content"] == "Be {kind}. <memories>\n- Shared.\n</memories>"
    told = messages_of(three, "CONTEXT", SETTING)
    assert [turn["role"] for turn in told] == ["system", "user", "assistant", "user"] and "CONTEXT" in told[0][
        "content"
    ]
    plain = Prompt(1, "Now?", two.memories, ({"role": "system", "content": "Be kind."},))
    assert [turn["content"] for turn in messages_of(plain, "CONTEXT", SETTING)] == ["Be kind.", "CONTEXT", "Now?"]


def test_records_of_one_line_are_told_apart_and_repeats_are_left_out(tmp_path):
    file = tmp_path / "p.json"
    file.write_text(json.dumps([{"query": query, "memories": ["One."]} for query in ("a", "b", "a")]))
    with pytest.warns(UserWarning, match="1 prompts repeat earlier ones"):
        assert [(prompt.line, prompt.query) for prompt in read_prompts(file)] == [(1, "a"), (2, "b")]


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ('{"query": "a"}', "line 1: 'memories' is missing"),
        ('{"memories": []}', "either 'query' or 'messages'"),
        ('{"query": " ", "memories": []}', "'query' is blank"),
        ('{"query": "a", "memories": "b"}', "one string"),
        ('{"query": "a", "memories": ["b", 3]}', "memory 2 is a number"),
        ('{"messages": [], "memories": []}', "'messages' is []"),
        ('{"messages": [{"role": "assistant", "content": "x"}], "memories": []}', "expected the user's"),
        ('{"messages": [{"role": "user", "content": ["x"]}], "memories": []}', "item 1 is a list"),
        (
            '{"messages": [{"role": "bot", "content": "x"}], "memories": []}',
            "item 1 has the role 'bot'; expected 'content' and a 'role' among",
        ),
        ("not json", "line 1"),
        ("", "holds no prompts"),
    ],
)
def test_a_bad_prompt_is_one_sentence(tmp_path, record, said, capsys):
    file = tmp_path / "p.jsonl"
    file.write_text(record)
    assert cli.main(["shadow", str(file), "--store", str(tmp_path / "s.sqlite")]) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1
    assert not (tmp_path / "s.sqlite").exists()


def test_memories_of_one_user_are_taken_and_the_store_is_named(tmp_path, monkeypatch, capsys):
    items = [{"id": str(k), "memory": text, "user_id": user} for k, (text, user) in enumerate(
        [("Likes tea.", "ada"), ("Plays the oboe.", "bo")]
    )]  # fmt: skip
    (tmp_path / "m.json").write_text(json.dumps({"results": items}))
    (tmp_path / "p.jsonl").write_text('{"query": "first"}')
    seen = []

    def measured(given, *_):
        seen.extend(given)
        return made_rows([("a", "b", "a")])

    monkeypatch.setattr("structmem.shadow.shadow", measured)
    command = ["shadow", str(tmp_path / "p.jsonl"), "--user", "bo", "--store", str(tmp_path / "s.sqlite")]
    assert cli.main([*command, "--memories", str(tmp_path / "m.json")]) == 0
    assert [prompt.texts for prompt in seen] == [("Plays the oboe.",)]
    assert f"Calls: {(tmp_path / 's.sqlite').resolve()} (" in capsys.readouterr().out.splitlines()[-1]
    assert cli.main(command) == 2 and "--memories FILE" in capsys.readouterr().err


# -- review -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def sheet(rows, tmp_path):
    path, key, n = write_sheet(rows, prompts(), "fixed", tmp_path / "review.csv")
    assert n == 4
    return path, key


def cells(path: Path, **how) -> list[list[str]]:
    with open(path, encoding="utf-8-sig", newline="") as file:
        return list(csv.reader(file, **how))


def filled(path: Path, key: Path, wanted: str) -> Path:
    """The sheet with one wish per pair: f(lat), s(tructured), t(ie) or - (nothing); saved with semicolons."""
    header, *lines = cells(path)
    items = {one["item"]: one for one in json.loads(key.read_text())["items"]}
    for line, wish in zip(lines, wanted, strict=True):
        arm = {"f": FLAT, "s": STRUCTURED}.get(wish)
        letter = next((letter for letter in ("a", "b") if items[line[0]][letter] == arm), "")
        line[header.index("score")] = {"t": "Tie", "-": ""}.get(wish, letter.upper())
    out = path.with_name("scored.csv")
    with open(out, "w", newline="") as file:
        csv.writer(file, delimiter=";").writerows([header, *lines])
    return out


def test_a_sheet_hides_the_arm_and_is_for_its_owner_only(sheet, rows):
    path, key = sheet
    assert all(os.stat(file).st_mode & 0o777 == 0o600 for file in sheet)
    header, *lines = cells(path)
    assert header == ["item", "question", "memories", "answer_a", "answer_b", "scale", "score", "note"]
    facts = json.loads(key.read_text())
    assert (facts["identical"], facts["missing"]) == (1, 1)  # "same" and "broken"
    told = {(row["line"], row["arm"]): row["response"] for row in rows.to_dict("records")}
    for line in lines:
        one = next(one for one in facts["items"] if one["item"] == line[0])
        assert line[3:5] == [told[one["line"], one["a"]], told[one["line"], one["b"]]]
        assert "flat" not in " ".join(line[:3] + line[5:]) and "fixed" not in " ".join(line[:3] + line[5:])
    with pytest.raises(InputError, match="exists already"):
        write_sheet(rows, prompts(), "fixed", path)


def test_a_formula_in_an_answer_or_question_stays_text(tmp_path):
    evil = Prompt(1, "=cmd|'/c calc'!A0", (Memory("1", "+1"),))
    path, _, _ = write_sheet(made_rows([('=HYPERLINK("x")', "@sum", "x")]), [evil], "tree", tmp_path / "r.csv")
    _, line = cells(path)
    assert all(cell.startswith("'") for cell in (line[1], line[3], line[4]))


def test_both_orders_occur_and_another_seed_deals_anew(tmp_path):
    answers = [(f"flat {k}", f"tree {k}", "x") for k in range(20)]
    many = [Prompt(k + 1, "q", ()) for k in range(20)]
    orders = []
    # The seed alone, which is 0 unless one is given, does not say whose answer is A.
    for seed, said in ((0, answers), (1, answers), (0, [(f"{flat}!", tree, x) for flat, tree, x in answers])):
        file = tmp_path / f"{len(orders)}.csv"
        _, key, _ = write_sheet(made_rows(said), many, "tree", file, seed)
        orders.append([(one["line"], one["a"]) for one in json.loads(key.read_text())["items"]])
    assert {arm for _, arm in orders[0]} == {FLAT, STRUCTURED}
    assert orders[0] != orders[1] and orders[0] != orders[2]
    assert [line for line, _ in orders[0]] != sorted(line for line, _ in orders[0])


def test_preferences_come_back_with_a_sign_test(sheet, capsys):
    path, key = sheet
    assert cli.main(["shadow", "--review", str(filled(path, key, "sst-")), str(key)]) == 0
    out = capsys.readouterr().out
    assert "4 pairs: fixed preferred 2, flat preferred 0, ties 1, not scored 1." in out
    assert "identical pairs 1, prompts without both answers 1." in out
    assert "fixed in 100.0 % of the 2 decided pairs" in out and "p = 0.5," in out
    review = read_review(filled(path, key, "sffs"), key)
    assert sorted(review["preferred"]) == [FLAT, FLAT, STRUCTURED, STRUCTURED]
    assert "p = 1," in "\n".join(review_words(review))


def test_the_sign_test_is_the_binomial_sum():
    review = pd.DataFrame({"preferred": [STRUCTURED] * 9 + [FLAT] * 2 + ["tie"], "chosen": ["a"] * 12})
    review.attrs = {"structure": "tree", "identical": 0, "missing": 0}
    p = 2 * sum(comb(11, k) for k in range(3)) / 2**11
    assert f"p = {p:.3g}," in "\n".join(review_words(review))


@pytest.mark.parametrize("damage", ["score", "moved", "gone", "other"])
def test_a_damaged_sheet_is_refused(sheet, damage):
    path, key = sheet
    header, *lines = cells(path)
    if damage == "score":
        lines[0][6] = "C"
    if damage == "moved":
        lines[0][3], lines[1][3] = lines[1][3], lines[0][3]
    if damage == "gone":
        lines.pop()
    if damage == "other":
        lines = [["X-1", *line[1:]] for line in lines[:1]]
    out = path.with_name("damaged.csv")
    with open(out, "w", newline="") as file:
        csv.writer(file).writerows([header, *lines])
    with pytest.raises(
        InputError, match={"score": "'C'", "moved": "beside other answers", "gone": "gone"}.get(damage, "another key")
    ):
        read_review(out, key)


def test_the_key_of_an_audit_is_no_key_of_a_review(sheet):
    path, key = sheet
    facts = json.loads(key.read_text()) | {"kind": "audit"}
    key.write_text(json.dumps(facts))
    with pytest.raises(InputError, match="no key of a review"):
        read_review(path, key)
