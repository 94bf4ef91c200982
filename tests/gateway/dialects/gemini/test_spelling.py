"""Names in camel case and in snake case: either spelling is read, but both together are refused."""

from __future__ import annotations

import tracemalloc

import httpx
import pytest

from gateway.dialects.gemini.schema import CountTokensRequest
from gateway.dialects.gemini.spelling import EitherDecoder
from tests.doubles.engine.fake_engine import FakeEngine, saying
from tests.doubles.gateway.served import MODEL
from tests.gateway.dialects.gemini.asking import PATH, error_of

HI = '"contents":[{"parts":[{"text":"hi"}]}]'
EMBED = '"content":{"parts":[{"text":"hi"}]}'
GENERATE, CREATE = f"{PATH}:generateContent", "/v1beta/cachedContents"

# for each member: its route, a body with `%s` for the member, and the member in both spellings
TWICE = {
    "a salt": (GENERATE, f"{{{HI},%s}}", '"cacheSalt":"mine"', '"cache_salt":"theirs"'),
    "a salt with an escape": (
        GENERATE,
        f"{{{HI},%s}}",
        '"cacheSalt":"mine"',
        '"cache\\u005fsalt":"theirs"',
    ),
    "limits": (
        GENERATE,
        f"{{{HI},%s}}",
        '"generationConfig":{"maxOutputTokens":3}',
        '"generation_config":{"maxOutputTokens":30}',
    ),
    "a limit": (
        GENERATE,
        f'{{{HI},"generationConfig":{{%s}}}}',
        '"maxOutputTokens":3',
        '"max_output_tokens":30',
    ),
    "a limit in one spelling": (
        GENERATE,
        f'{{{HI},"generationConfig":{{%s}}}}',
        '"maxOutputTokens":3',
        '"maxOutputTokens":30',
    ),
    "a limit in snake case": (
        GENERATE,
        f'{{{HI},"generation_config":{{%s}}}}',
        '"max_output_tokens":3',
        '"max_output_tokens":30',
    ),
    "the salt of a cached content": (
        CREATE,
        f'{{"model":"models/{MODEL}",{HI},%s}}',
        '"cacheSalt":"mine"',
        '"cache_salt":"theirs"',
    ),
    "the salt of an embedding": (
        f"{PATH}:embedContent",
        f"{{{EMBED},%s}}",
        '"cacheSalt":"mine"',
        '"cache_salt":"theirs"',
    ),
    "the salt of an embedding in a batch": (
        f"{PATH}:batchEmbedContents",
        f'{{"requests":[{{{EMBED},%s}}]}}',
        '"cacheSalt":"mine"',
        '"cache_salt":"theirs"',
    ),
    "the salt of an embedding in a batch, in one spelling": (
        f"{PATH}:batchEmbedContents",
        f'{{"requests":[{{{EMBED},%s}}]}}',
        '"cacheSalt":"mine"',
        '"cacheSalt":"theirs"',
    ),
    "the salt of a counted request": (
        f"{PATH}:countTokens",
        f'{{"generateContentRequest":{{{HI},%s}}}}',
        '"cacheSalt":"mine"',
        '"cacheSalt":"theirs"',
    ),
    "a limit of a counted request in snake case": (
        f"{PATH}:countTokens",
        f'{{"generate_content_request":{{{HI},"generation_config":{{%s}}}}}}',
        '"max_output_tokens":3',
        '"max_output_tokens":30',
    ),
}


@pytest.mark.parametrize(("path", "around", "one", "other"), TWICE.values(), ids=TWICE)
def test_a_name_is_given_once(
    http: httpx.Client, engine: FakeEngine, path: str, around: str, one: str, other: str
) -> None:
    engine.script = saying("ok")
    for alone in (one, other):
        answer = http.post(path, content=around % alone)
        assert answer.status_code == 200, answer.text
    before = len(engine.requests)
    for both in (f"{one},{other}", f"{other},{one}"):
        error = error_of(http.post(path, content=around % both), 400, "INVALID_ARGUMENT")
        assert error["message"].endswith("is given twice")
    assert len(engine.requests) == before


@pytest.mark.parametrize("name", ["cacheSalt", "cache_salt", "cache\\u005fsalt"])
def test_a_salt_counts_in_every_spelling(http: httpx.Client, engine: FakeEngine, name: str) -> None:
    engine.script = saying("ok")
    cached = []
    for salt in ("mine", "mine", "theirs"):
        text = f'{{"contents":[{{"parts":[{{"text":"{"x" * 500}"}}]}}],"{name}":"{salt}"}}'
        usage = http.post(GENERATE, content=text).json()["usageMetadata"]
        cached.append(usage["cachedContentTokenCount"] > 0)
    assert cached == [False, True, False]


def test_names_within_arguments_are_the_callers_own(http: httpx.Client, engine: FakeEngine) -> None:
    engine.script = saying("ok")
    call = '{"name":"clock","args":{"cacheSalt":"a","cache_salt":"b"}}'
    said = f'{{"role":"model","parts":[{{"function_call":{call}}}]}}'
    result = '{"parts":[{"functionResponse":{"name":"clock","response":{"at":1}}}]}'
    tools = '"tools":[{"functionDeclarations":[{"name":"clock"}]}]'
    body = f'{{"contents":[{{"parts":[{{"text":"hi"}}]}},{said},{result}],{tools}}}'
    answer = http.post(GENERATE, content=body)
    assert answer.status_code == 200, answer.text


def test_requests_within_each_other_are_read_once() -> None:
    decoder = EitherDecoder(CountTokensRequest)
    peaks = []
    for levels in (1, 60):
        inner = f'{{{HI},"unknown":"{"x" * 100_000}"}}'
        for _ in range(levels):
            inner = f'{{{HI},"generateContentRequest":{inner}}}'
        body = inner.encode()
        tracemalloc.start()
        decoder.decode(body)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 2 * peaks[0]
