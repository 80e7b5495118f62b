"""failures: what providers say when they refuse, and what that means; wordings are paraphrased from public reports."""

from __future__ import annotations

import pytest

from structmem.addresses import tidy
from structmem.errors import InputError
from structmem.failures import classify, retry_after
from structmem.masking import Masker


class Http(Exception):
    def __init__(self, status, said, headers=None):
        super().__init__(said)
        self.status_code, self.litellm_response_headers = status, headers


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (400, "This model's maximum context length is 4096 tokens. However, you requested 5021 tokens"),  # OpenAI, vLLM
        (400, "The prompt has 9000 tokens and exceeds the model's maximum length of 4096"),  # vLLM, newer
        (400, "the request exceeds the available context size. try increasing the context size"),  # llama.cpp
        (500, "the request exceeds the available context size"),  # llama.cpp, older
        (400, "the input length exceeds the context length"),  # Ollama
        (400, "prompt is too long: 212345 tokens > 200000 maximum"),  # Anthropic
        (400, "input length and `max_tokens` exceed context limit: 199000 + 20000 > 200000"),  # Anthropic
        (400, "Input is too long for requested model."),  # Bedrock
        (400, "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."),  # Gemini
        (400, "Prompt contains 40000 tokens, too large for model with 32768 maximum context length"),  # Mistral
        (400, "Prompt contains 9 tokens, too large for model with 8 maximum context length"),
        (400, "Please reduce the length of the messages or completion."),  # Groq
        (413, "Request too large for model `x` on tokens per minute (TPM): Limit 6000, Requested 9000"),  # Groq
        (429, "Request too large for x on tokens per min: the input or output tokens must be reduced"),  # OpenAI
        (422, "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens"),
        (400, "`inputs` must have less than 4095 tokens. Given: 5000"),  # TGI
        (400, "too many tokens: total number of tokens in the prompt cannot exceed 4081"),  # Cohere
        (400, "number of prompt tokens 9000 exceeds limit 8192"),
        (400, "context_length_exceeded"),
    ],
)  # fmt: skip
def test_a_prompt_that_is_too_long_in_many_words(status, said):
    failure = classify(Http(status, said), 30)
    assert (failure.reason, failure.retry, failure.setup) == ("too_long", False, False) and said in failure.detail


@pytest.mark.parametrize(
    ("status", "said", "reason"),
    [
        (400, "max_tokens: 9000 is too large: this model supports at most 4096 completion tokens", "error"),
        (400, "The response is too long for you to read", "error"),
        (429, "Rate limit reached: too many tokens per minute, try again", "error"),
        (400, "Your request was flagged by our safety system", "filtered"),
        (400, "PROHIBITED_CONTENT", "filtered"),
        (400, "temperature: Extra inputs are not permitted", "error"),
    ],
)
def test_what_only_sounds_alike(status, said, reason):
    assert classify(Http(status, said), 30).reason == reason


@pytest.mark.parametrize(
    "said",
    [
        "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) is supported.",
        "temperature is not supported with this model",
        "`temperature` is deprecated for this model.",
        "gpt-x doesn't support temperature=0.0. Only temperature=1 is supported.",
        "Unrecognized request argument supplied: temperature",
    ],
)
def test_a_refused_parameter_is_named_with_the_value_asked(said):
    failure = classify(Http(400, said), 30, {"max_tokens": 9, "temperature": 0.0})
    assert "does not accept temperature=0.0" in failure.detail and not failure.retry
    assert "model_options={'drop': ['temperature']}" in failure.detail


@pytest.mark.parametrize(
    ("status", "said", "throttled", "retry"),
    [
        (429, "slow down", True, True),
        (429, "You exceeded your current quota", False, False),
        (503, "The model is overloaded. Please try again later.", True, True),
        (529, "Overloaded", True, True),
        (503, "no healthy upstream", False, True),
        (500, "overloaded", False, True),
        (400, "too many requests", False, False),
    ],
)
def test_who_is_throttled(status, said, throttled, retry):
    failure = classify(Http(status, said), 30)
    assert (failure.throttled, failure.retry) == (throttled, retry)


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("Please try again in 7.66s. Visit", 7.66), ("Please try again in 1m26.4s", 86.4), ('"retryDelay": "34s"', 34),
        ("try again in 120ms", 0.12), ("retry after 20 seconds", 20), ("try again in 6m0s", 360),
        ("Please retry after 5 sec", 5), ("try again in 2h3m", 7380), ("try again later", None), ("in 5 s", None),
    ],
)  # fmt: skip
def test_a_time_to_wait_in_words(said, seconds):
    assert classify(Http(429, said), 30).wait_s == (None if seconds is None else pytest.approx(seconds))


def test_a_header_beats_words_and_milliseconds_beat_seconds():
    assert retry_after(Http(429, "try again in 9s", {"retry-after": "3"})) == 3
    assert retry_after(Http(429, "", {"retry-after": "3", "retry-after-ms": "2500"})) == 2.5
    assert retry_after(Http(429, "", {"retry-after": "-3"})) == 0


def test_a_missing_path_is_said_with_the_url():
    failure = classify(Http(404, "Not Found"), 30, {}, "http://127.0.0.1:8/chat/completions")
    assert failure.setup and "went to http://127.0.0.1:8/chat/completions" in failure.detail and "/v1" in failure.detail
    assert "went to" not in classify(Http(401, "no"), 30, {}, "http://127.0.0.1:8/v1").detail


class Coded(Exception):
    def __init__(self, code, text="synthetic"):
        super().__init__(text)
        self.status_code = code


@pytest.mark.parametrize(
    ("code", "retry", "throttled"),
    [
        ("rate_limit_exceeded", True, True), ("429", True, True), ("overloaded", True, True),
        ("server_error", True, False), (409, True, False), (425, True, False),
        ("invalid_request", False, False), ([1], False, False), (None, False, False),
    ],
)  # fmt: skip
def test_codes_in_words_and_what_may_pass(code, retry, throttled):
    failure = classify(Coded(code), 1)
    assert (failure.reason, failure.retry, failure.throttled) == ("error", retry, throttled)


def test_moderation_is_a_filter_and_a_wrong_key_is_none():
    said = "Your chosen model requires moderation and your input was flagged"
    assert classify(Coded(403, said), 1).reason == "filtered"
    assert classify(Coded(403, "Key is not allowed"), 1).setup


def test_a_login_in_an_address_is_in_no_error():
    said = classify(Coded(500, "cannot connect to http://zoe:pa@ss1@host:1/v1"), 1).detail
    assert "host:1/v1" in said and "zoe" not in said and "ss1" not in said
    for address in ("http://zoe:pass1word@host:99999/v1", "https//zoe:pass1word@h", "zoe:pass1word@h", "h?pass1word"):
        with pytest.raises(InputError) as caught:
            tidy("m", "openai", address, "api_base")
        assert "pass1word" not in str(caught.value) and "zoe" not in str(caught.value)
    assert (
        Masker().mask("http://ann@host and http://a:b@c@host/x")
        == "http://[key hidden]@host and http://[key hidden]@host/x"
    )


@pytest.mark.parametrize("date", ["Fri, 31 Dec 9999 23:59:59 -2359", "Wed, 21 Oct 99999 07:28:00 GMT", "inf"])
def test_absurd_times_to_wait_are_read(date):
    error = Coded(429)
    error.litellm_response_headers = {"retry-after": date}
    assert (told := retry_after(error)) is None or told > 1e9
