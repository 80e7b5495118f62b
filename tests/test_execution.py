"""The work itself: finished rows are read, the rest go out without waiting for each other."""

import asyncio
import json
import threading

import pytest
from test_experiment import ENTRIES, go, model

from structmem import execution
from structmem.data import Entry
from structmem.errors import BudgetReached, InputError, SetupError
from structmem.experiment import finished, run
from structmem.llm import Client

MANY = [Entry(f"e{i}", (f"User owns {i} boats.", "User sings."), "Hello?", "cross_domain") for i in range(12)]


def different(before=lambda request: None):
    """A model no two answers of which are equal, since equal ones would share a verdict."""
    return model(lambda request: before(request) or f"{request.tags} in {request.messages}")


def judging(score=2):
    """A judge model that counts its calls."""

    def judge(messages, request):
        judge.seen.append(request)
        return json.dumps({"reasoning": "because", "score": score})

    judge.model_id, judge.seen = "test/judge", []
    return judge


def waiting(until, name):
    """An async model whose answers wait for `until(request)`; bounded, so that a failing test ends."""

    async def ask(messages, request):
        async with asyncio.timeout(10):
            while not until(request):
                await asyncio.sleep(0.005)
        return "fine"

    ask.model_id = name
    return ask


class TestResume:
    def test_a_finished_run_asks_nobody_and_says_the_same(self, tmp_path):
        asked, judge = different(), judging()
        settings = dict(
            models=[asked], judge="persistbench", judge_model=judge, structures=["flat", "tree"], store=tmp_path / "s"
        )
        first = go(ENTRIES[:2], **settings)
        made = len(asked.seen), len(judge.seen)
        with Client(tmp_path / "s") as client:
            again = go(ENTRIES[:2], **settings, client=client)
            assert client.counts["made"] == 0
            # every answer, verdict and partition once: 3 arms (flat twice) of 2 x 3 generations, 2 trees
            assert client.counts["by_role"]["answer"]["stored"] == made[0] == 3 * 6
            assert client.counts["by_role"]["judge"]["stored"] == made[1] == 3 * 6
            assert client.counts["by_role"]["structurer"]["stored"] == 2
        assert (len(asked.seen), len(judge.seen)) == made
        assert first.equals(again)

    def test_only_what_is_missing_is_asked_for(self, tmp_path):
        asked, silent, judge = different(), judging(score=9), judging()
        silent.model_id = judge.model_id  # the same judge on a bad day: its verdicts are kept and cannot be used
        settings = dict(models=[asked], judge="persistbench", structures=["flat"], store=tmp_path / "s")
        bad = go(MANY[:2], **settings, judge_model=silent)
        assert set(bad["status"]) == {"no_verdict"} and len(asked.seen) == 12
        good = go(MANY, **settings, judge_model=judge)
        assert set(good["status"]) == {"ok"} and len(asked.seen) == 12 * 6
        assert len(judge.seen) == 12 * 6 and {request.attempt for request in judge.seen} == {0, 3}

    def test_rows_without_a_layout_do_not_hide_the_others(self):
        async def sorter(messages):
            raise RuntimeError("no sorting today")

        sorter.model_id = "test/sorter"
        df = go(structures=["flat", "fixed"], structurers=[sorter])
        assert set(df.loc[df["structure"] == "flat", "status"]) == {"ok"}
        assert set(df.loc[df["structure"] == "fixed", "status_reason"]) == {"no_structure"}

    def test_rows_that_cannot_be_asked_for_stay_rows(self, monkeypatch):
        monkeypatch.setattr("structmem.execution.build_messages", lambda *_, **__: [{"role": "user", "content": " "}])
        df = go(MANY[:2], structures=["flat"], aa=False)
        assert len(df) == 6 and set(df["status"]) == {"no_response"}
        assert df["status_detail"].str.contains("blank").all()


class TestNobodyWaits:
    def test_a_stuck_model_holds_up_no_other_model(self):
        quick, done = model(name="test/quick"), threading.Event()

        def all_quick(request):
            if len(quick.seen) == 12 * 6:
                done.set()
            return done.is_set()

        stuck = waiting(all_quick, "test/stuck")
        df = go(MANY, models=[stuck, quick], structures=["flat"], max_concurrency=2)
        assert done.is_set() and (df["status"] == "ok").all()

    def test_a_stuck_arm_holds_up_no_other_arm(self):
        answered = []

        def free(request):
            if request.tags["entry_id"] == "e0" and request.tags["structure"] == "fixed":
                return len(answered) == 12 * 9 - 3
            answered.append(request)
            return True

        df = go(MANY, models=[waiting(free, "test/arms")], structures=["flat", "fixed"], max_concurrency=4)
        assert (df["status"] == "ok").all() and len(answered) == 12 * 9 - 3

    def test_judgements_start_while_answers_are_still_asked_for(self):
        judge = judging()
        judged = []
        asked = different(lambda request: judged.append(len(judge.seen)))
        go(MANY, models=[asked], judge="persistbench", judge_model=judge, structures=["flat"], max_concurrency=2)
        assert judged[-1] > len(MANY) * 6 / 2


class TestBudget:
    @pytest.mark.parametrize(
        "settings",
        [
            {"models": ["openai/no-such-model-of-anyone"]},
            {"judge": "persistbench", "judge_model": "openrouter/no/such"},
            {"structurers": ["hosted_vllm/own"]},
        ],
    )
    def test_a_model_without_a_price_is_refused_before_any_call(self, settings):
        asked = model()
        with pytest.raises(InputError, match="No price is known for .* nothing was asked: give prices="):
            go(**{"models": [asked], "budget_usd": 1.0} | settings)
        assert not asked.seen

    def test_a_given_price_is_enough(self, monkeypatch):
        asked = model()
        df = go(models=[asked], budget_usd=1.0, prices={asked.model_id: (1e-6, 1e-6)}, structures=["flat"])
        assert (df["status"] == "ok").all()

    def test_the_limit_ends_a_run_cleanly(self, recwarn):
        def answer(request):
            return {"text": "fine", "input_tokens": 10, "output_tokens": 10, "cost_usd": 0.01}

        asked = model(answer)
        df = run(
            MANY, [asked], ["flat"], judge="echo", store=":memory:", budget_usd=0.1, max_concurrency=4, progress=False
        )
        assert len(df) == 72 and "budget" in df.attrs["stopped"]
        assert set(df["status_reason"].dropna()) == {"not_asked"}
        assert (df["status"] == "ok").sum() == len(asked.seen) <= 10 + 4 + 3
        assert [str(w.message)[:12] for w in recwarn] == ["stopped with"]

    def test_a_stop_shows_the_answers_that_the_store_holds(self, tmp_path):
        asked, judge = different(), judging(score=9)
        settings = dict(
            models=[asked], judge="persistbench", judge_model=judge, structures=["flat"], aa=False, store=tmp_path / "s"
        )
        go(MANY[:4], **settings)  # answers, and no verdict that can be used
        paid = {name: (1.0, 1.0) for name in (asked.model_id, judge.model_id)}
        judge.seen.clear()
        with pytest.warns(UserWarning, match="stopped"):
            df = go(MANY, **settings, client=Stopping(tmp_path / "s", prices=paid))
        known = df[df["entry_id"].isin([entry.entry_id for entry in MANY[:4]])]
        assert len(known) == 12 and known["response"].notna().all() and not judge.seen
        assert set(zip(known["status"], known["status_reason"], strict=True)) == {("no_verdict", "not_asked")}
        assert set(df["status_reason"]) == {"not_asked"}


class Stopping(Client):
    """A client whose budget is spent before the first verdict."""

    async def aask(self, *_, **__):
        raise BudgetReached("nothing left")


class TestDeadModels:
    def test_a_model_that_cannot_be_called_leaves_the_others_alone(self):
        def broken(messages):
            raise NameError("a bug in the function")

        broken.model_id = "test/broken"
        with pytest.warns(UserWarning, match="test/broken.*cannot be called"):
            df = go(MANY, models=[broken, different()], structures=["flat"])
        assert df[df["model"] == "test/model"]["status"].eq("ok").all()
        assert df[df["model"] == "test/broken"]["status"].eq("no_response").all()
        with pytest.raises(SetupError, match="a bug in the function"):
            go(MANY, models=[broken], structures=["flat"])

    def test_a_dead_server_is_not_asked_for_ever(self):
        calls = []

        def dead(messages):
            calls.append(1)
            if len(calls) > 3:
                raise OSError("connection refused")
            return "fine"

        dead.model_id = "test/dead"
        many = [Entry(f"e{i}", (f"User owns {i} boats.",), "Hello?", "cross_domain") for i in range(40)]
        with pytest.warns(UserWarning, match=f"{execution.GIVE_UP} rows on end came to nothing.*connection refused"):
            df = go(many, models=[dead], structures=["flat"], max_retries=0, max_concurrency=4)
        assert len(df) == 40 * 2 * 3 and set(df["status"]) == {"ok", "no_response"}
        assert execution.GIVE_UP < len(calls) < execution.GIVE_UP + 3 + 3 * 8
        assert "came to nothing" in df.attrs["stopped"]


def test_what_is_finished_is_counted_without_a_call(tmp_path):
    asked = different()
    settings = dict(models=[asked], structures=["flat", "fixed"], judge="echo", store=tmp_path / "s")
    assert finished(MANY, **settings) == 0 and not asked.seen
    go(MANY[:4], **settings)
    made = len(asked.seen)
    assert finished(MANY, **settings) == 4 * 9 and len(asked.seen) == made == 4 * 9
