"""Every malformed request gets exactly one typed answer, and leaves no state in the gateway."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.doubles.engine.fake_engine import FakeEngine
from tests.doubles.gateway.served import MODEL, Served
from tests.gateway.support.raw_http import connected, head, post, read_answer

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
GOOD_CHAT: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 2,
}
FUNCTION = {"type": "function", "function": {"name": "f"}}
GOOD_COMPLETION: dict[str, Any] = {"model": MODEL, "prompt": "hi", "max_tokens": 2}


def chat(**changes: Any) -> bytes:
    return json.dumps({**GOOD_CHAT, **changes}).encode()


def completion(**changes: Any) -> bytes:
    return json.dumps({**GOOD_COMPLETION, **changes}).encode()


def chat_with(raw: bytes) -> bytes:
    """Return the body of a valid chat with one more field, written as `raw`."""
    return chat()[:-1] + b", " + raw + b"}"


def chat_saying(content: Any, role: Any = "user") -> bytes:
    return chat(messages=[{"role": role, "content": content}])


JSON = {
    "empty": b"",
    "blank": b"   ",
    "truncated": chat()[:-1],
    "trailing text": chat() + b"x",
    "two values": chat() + chat(),
    "an array": b"[" + chat() + b"]",
    "a string": b'"hi"',
    "null": b"null",
    "a number": b"1",
    "single quotes": b"{'model': 'tiny'}",
    "a comment": b"/* */" + chat(),
    "trailing comma": chat()[:-1] + b",}",
    "byte order mark": b"\xef\xbb\xbf" + chat(),
    "utf-16": chat().decode().encode("utf-16"),
    "utf-32": chat().decode().encode("utf-32"),
    "latin-1": chat_with('"user": "é"'.encode("latin-1")),
    "bad utf-8 in an unknown name": chat_with(b'"zzz": "\xff"'),
    "bad utf-8 as a name": chat_with(b'"\xff": 1'),
    "overlong utf-8": chat_with(b'"user": "\xc0\xaf"'),
    "surrogate in utf-8": chat_with(b'"user": "\xed\xa0\x80"'),
    "lone high surrogate": chat_with(rb'"user": "\ud800"'),
    "lone low surrogate": chat_with(rb'"user": "\udc00"'),
    "lone surrogate as a name": chat_with(rb'"\ud800": 1'),
    "raw NUL": chat_with(b'"user": "\x00"'),
    "raw newline in a string": chat_with(b'"user": "a\nb"'),
    "NaN": chat_with(b'"temperature": NaN'),
    "NaN in an unknown name": chat_with(b'"zzz": NaN'),
    "Infinity": chat_with(b'"temperature": Infinity'),
    "1e999": chat_with(b'"temperature": 1e999'),
    "minus 1e999": chat_with(b'"presence_penalty": -1e999'),
    "10,000 digits": chat_with(b'"n": ' + b"9" * 10_000),
    "10,000 digits as a float": chat_with(b'"temperature": ' + b"9" * 10_000),
    "25 digits": chat_with(b'"seed": ' + b"9" * 25),
    "25 digits for n": chat_with(b'"n": ' + b"9" * 25),
    "leading zero": chat_with(b'"n": 01'),
    "hexadecimal": chat_with(b'"n": 0x1'),
    "deep array": chat_with(b'"zzz": ' + b"[" * 100_000 + b"]" * 100_000),
    "deep object": chat_with(b'"zzz": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "deep and open": b"[" * 100_000,
    "a little too deep": chat_with(b'"zzz": ' + b"[" * 64 + b"]" * 64),
    "deep behind quotes": chat_with(b'"user": "\\"]]", "zzz": ' + b"[" * 99 + b"]" * 99),
}
CHATS = {
    "no model": json.dumps({"messages": GOOD_CHAT["messages"]}).encode(),
    "no messages": json.dumps({"model": MODEL}).encode(),
    "model a number": chat(model=1),
    "model null": chat(model=None),
    "empty messages": chat(messages=[]),
    "messages a string": chat(messages="hi"),
    "messages null": chat(messages=None),
    "messages of strings": chat(messages=["hi"]),
    "messages an object": chat(messages={"role": "user", "content": "hi"}),
    "unknown role": chat_saying("hi", role="wizard"),
    "role a number": chat_saying("hi", role=1),
    "no role": chat(messages=[{"content": "hi"}]),
    "no content": chat(messages=[{"role": "user"}]),
    "content null": chat_saying(None),
    "content a number": chat_saying(1),
    "content an object": chat_saying({"text": "hi"}),
    "an image": chat_saying([{"type": "image_url", "image_url": {"url": "http://x"}}]),
    "an unknown part": chat_saying([{"type": "telepathy"}]),
    "a part without text": chat_saying([{"type": "text"}]),
    "text a number": chat_saying([{"type": "text", "text": 1}]),
    "tool calls": chat(messages=[{"role": "assistant", "content": "", "tool_calls": [{}]}]),
    "4,097 messages": chat(messages=GOOD_CHAT["messages"] * 4097),
    "n twice": chat_with(b'"n": 1, "n": 2'),
    "a salt twice, by an escape": chat_with(rb'"cache_salt": "a", "cache\u005fsalt": "b"'),
    "an unknown name twice": chat_with(b'"zzz": 1, "zzz": 1'),
    "n 0": chat(n=0),
    "n negative": chat(n=-1),
    "n a billion": chat(n=10**9),
    "n over the bound": chat(n=17),
    "n a string": chat(n="3"),
    "n true": chat(n=True),
    "n a float": chat(n=1.5),
    "temperature below": chat(temperature=-0.01),
    "temperature above": chat(temperature=2.01),
    "temperature a string": chat(temperature="hot"),
    "temperature true": chat(temperature=True),
    "top_p 0": chat(top_p=0),
    "top_p above": chat(top_p=1.01),
    "top_k": chat(top_k=-2),
    "min_p": chat(min_p=1.5),
    "presence_penalty": chat(presence_penalty=2.5),
    "frequency_penalty": chat(frequency_penalty=-2.5),
    "repetition_penalty": chat(repetition_penalty=0),
    "repetition_penalty near 0": chat(repetition_penalty=1e-300),
    "max_tokens negative": chat(max_tokens=-1),
    "max_tokens true": chat(max_tokens=True),
    "max_completion_tokens negative": chat(max_completion_tokens=-1),
    "max_tokens over the context": chat(max_tokens=5000),
    "min_tokens over max_tokens": chat(min_tokens=3),
    "a prompt over the context": chat_saying("x" * 5000),
    "a prompt far over the context": chat_saying("x" * 200_000),
    "logit_bias a list": chat(logit_bias=[1]),
    "logit_bias too strong": chat(logit_bias={"1": 101}),
    "logit_bias too weak": chat(logit_bias={"1": -101}),
    "logit_bias for no token": chat(logit_bias={"260": 1}),
    "logit_bias for a negative token": chat(logit_bias={"-1": 1}),
    "logit_bias for a word": chat(logit_bias={"the": 1}),
    "logit_bias for a huge token": chat(logit_bias={"9" * 30: 1}),
    "logit_bias of a string": chat(logit_bias={"1": "2"}),
    "logit_bias too many": chat(logit_bias={str(i): 1 for i in range(1025)}),
    "stop empty": chat(stop=""),
    "stop with an empty one": chat(stop=["a", ""]),
    "stop a number": chat(stop=1),
    "stop of numbers": chat(stop=[1]),
    "stop too many": chat(stop=[str(i) for i in range(17)]),
    "stop too long": chat(stop="x" * 257),
    "stop_token_ids outside": chat(stop_token_ids=[260]),
    "stop_token_ids negative": chat(stop_token_ids=[-1]),
    "stop_token_ids too many": chat(stop_token_ids=list(range(17))),
    "logprobs a number": chat(logprobs=1),
    "top_logprobs alone": chat(top_logprobs=1),
    "top_logprobs too many": chat(logprobs=True, top_logprobs=21),
    "top_logprobs negative": chat(logprobs=True, top_logprobs=-1),
    "cache_salt empty": chat(cache_salt=""),
    "cache_salt too long": chat(cache_salt="x" * 1025),
    "cache_salt a number": chat(cache_salt=1),
    "user a number": chat(user=1),
    "stream a string": chat(stream="yes"),
    "stream_options a string": chat(stream_options="usage"),
    "metadata of objects": chat(metadata={"a": {}}),
    "json_schema": chat(response_format={"type": "json_schema", "json_schema": {}}),
    "a schema that is none": chat(
        response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": "{"}}
    ),
    "an unknown response_format": chat(response_format={"type": "yaml"}),
    "two formats": chat(response_format={"type": "json_object"}, guided_regex="a"),
    "no choices": chat(structured_outputs={"choice": []}),
    "tools": chat(tools=[FUNCTION]),
    "tools on their own terms": chat(tools=[{}], tool_choice="auto"),
    "a tool without a function": chat(tools=[{"type": "function"}], tool_choice="none"),
    "tools of another kind": chat(tools=[FUNCTION, {"type": "custom"}], tool_choice="none"),
    "too many tools": chat(tools=[FUNCTION] * 129, tool_choice="none"),
    "a lone surrogate in a tool": chat_with(
        rb'"tool_choice": "none", "tools": '
        rb'[{"type": "function", "function": {"name": "f"}, "zzz": "\ud800"}]'
    ),
    "tools no list": chat(tools={}),
    "tool_choice required": chat(tool_choice="required"),
    "functions": chat(functions=[{"name": "f"}]),
    "audio": chat(audio={"voice": "x"}),
    "modalities": chat(modalities=["text", "audio"]),
    "structural_tag": chat(structured_outputs={"structural_tag": {"begin": "a"}}),
    "structured_outputs a list": chat(structured_outputs=[]),
    "a tool_choice without its tool": chat(
        tools=[FUNCTION], tool_choice={"type": "function", "function": {"name": "g"}}
    ),
    "calls of the user": chat(
        messages=[{"role": "user", "content": "a", "tool_calls": [{"function": {"name": "f"}}]}]
    ),
    "arguments no JSON": chat(
        messages=[
            {
                "role": "assistant",
                "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{"}}],
            }
        ]
    ),
    "a template of the client's": chat(chat_template="{{ 1 }}"),
    "template variables not scalar": chat(chat_template_kwargs={"a": [1]}),
    "template variables no names": chat(chat_template_kwargs={"a b": 1}),
    "template variables too long": chat(chat_template_kwargs={"a": "x" * (16 << 10)}),
    "template variables too many": chat(chat_template_kwargs={f"v{i}": 1 for i in range(33)}),
    "continue a user": chat(continue_final_message=True),
    "continue and prompt": chat(
        messages=[*GOOD_CHAT["messages"], {"role": "assistant", "content": "a"}],
        continue_final_message=True,
        add_generation_prompt=True,
    ),
}
COMPLETION_CASES = {
    "no prompt": json.dumps({"model": MODEL}).encode(),
    "prompt null": completion(prompt=None),
    "prompt empty": completion(prompt=""),
    "prompt an empty list": completion(prompt=[]),
    "prompt of empty texts": completion(prompt=["a", ""]),
    "prompt of empty lists": completion(prompt=[[1], []]),
    "prompt a number": completion(prompt=1),
    "prompt an object": completion(prompt={}),
    "prompt mixed": completion(prompt=["a", 1]),
    "prompt mixed lists": completion(prompt=[[1], "a"]),
    "prompt of floats": completion(prompt=[1.5]),
    "prompt of booleans": completion(prompt=[True]),
    "prompt nested too deep": completion(prompt=[[[1]]]),
    "token negative": completion(prompt=[-1]),
    "token outside": completion(prompt=[260]),
    "token huge": completion(prompt=[10**30]),
    "token outside in a batch": completion(prompt=[[1], [260]]),
    "129 prompts": completion(prompt=["a"] * 129),
    "prompts times n": completion(prompt=["a"] * 20, n=16),
    "prompt over the context": completion(prompt=[1] * 5000),
    "logprobs too many": completion(logprobs=21),
    "logprobs true": completion(logprobs=True),
    "suffix": completion(suffix="end"),
    "best_of": completion(best_of=2),
    "n over the bound": completion(n=17),
}
OTHERS = {
    "tokenize nothing": ("/tokenize", b"{}"),
    "tokenize both": ("/tokenize", chat(prompt="x")),
    "tokenize a number": ("/tokenize", b'{"prompt": 1}'),
    "tokenize bad json": ("/tokenize", b"{"),
    "tokenize bad tools": ("/tokenize", chat(tools=[{}])),
    "tokenize tools of a text": ("/tokenize", json.dumps({"prompt": "x", "tools": [1]}).encode()),
    "detokenize nothing": ("/detokenize", b"{}"),
    "detokenize outside": ("/detokenize", b'{"tokens": [260]}'),
    "detokenize negative": ("/detokenize", b'{"tokens": [-1]}'),
    "detokenize huge": ("/detokenize", b'{"tokens": [99999999999999999999]}'),
    "detokenize text": ("/detokenize", b'{"tokens": "x"}'),
    "detokenize more than the context": (
        "/detokenize",
        json.dumps({"tokens": [104] * 4097}).encode(),
    ),
}
CORPUS = {
    **{f"json: {name}": (CHAT, body) for name, body in JSON.items()},
    **{f"json for completions: {name}": (COMPLETIONS, body) for name, body in JSON.items()},
    **{f"chat: {name}": (CHAT, body) for name, body in CHATS.items()},
    **{f"completion: {name}": (COMPLETIONS, body) for name, body in COMPLETION_CASES.items()},
    **OTHERS,
}
PARAMS = {
    "chat: temperature above": "temperature",
    "chat: n over the bound": "n",
    "chat: unknown role": "messages[0].role",
    "chat: logit_bias for no token": "logit_bias",
    "chat: logit_bias too strong": "logit_bias",
    "chat: repetition_penalty near 0": "repetition_penalty",
    "chat: tools": "tools",
    "chat: a tool without a function": "tools[0].function",
    "chat: tools of another kind": "tools[1].custom",
    "chat: too many tools": "tools",
    "chat: tools no list": "tools",
    "tokenize bad tools": "tools[0].function",
    "chat: json_schema": "response_format.json_schema.schema",
    "chat: a schema that is none": "response_format.json_schema.schema",
    "chat: an unknown response_format": "response_format.type",
    "chat: two formats": "guided_regex",
    "chat: no choices": "structured_outputs.choice",
    "chat: a tool_choice without its tool": "tool_choice",
    "chat: calls of the user": "messages[0].tool_calls",
    "chat: arguments no JSON": "messages[0].tool_calls[0].function.arguments",
    "chat: no messages": "messages",
    "chat: an image": "messages[0].content[0].type",
    "completion: suffix": "suffix",
    "completion: token negative": "prompt[0]",
    "detokenize negative": "tokens[0]",
    "detokenize text": "tokens",
    "detokenize more than the context": "tokens",
    "completion: token outside": "prompt",
}
CODES = {
    "chat: a prompt over the context": "context_length_exceeded",
    "chat: a prompt far over the context": "context_length_exceeded",
    "chat: max_tokens over the context": "context_length_exceeded",
    "completion: prompt over the context": "context_length_exceeded",
    "detokenize more than the context": "context_length_exceeded",
    "json: empty": "invalid_json",
    "json: deep array": "invalid_json",
    "chat: no model": "missing_required_parameter",
    "chat: audio": "unsupported_parameter",
    "chat: tools": "unsupported_parameter",
    "chat: a lone surrogate in a tool": "invalid_json",
}
GOOD = {
    "chat": (CHAT, chat()),
    "null means left out": (CHAT, chat(temperature=None, n=None, stop=None, tools=None)),
    "unknown names": (CHAT, chat(zzz={"deep": [[[1]]]})),
    "two names in a schema": (CHAT, chat_with(b'"metadata": {"a": "1", "a": "2"}')),
    "escaped NUL": (CHAT, chat_saying("a\x00b")),
    "a surrogate pair": (CHAT, chat_with(rb'"user": "\ud83d\ude00"')),
    "bounds themselves": (CHAT, chat(n=16, temperature=2, top_p=1, stop=["x" * 256] * 16)),
    "brackets in a string": (CHAT, chat_saying("[" * 1000)),
    "just deep enough": (CHAT, chat_with(b'"zzz": ' + b"[" * 63 + b"]" * 63)),
    "no tool may be called": (CHAT, chat(tools=[FUNCTION], tool_choice="none")),
    "as many tools as may be": ("/tokenize", chat(tools=[FUNCTION] * 128)),
    "text is a format": (CHAT, chat(response_format={"type": "text"})),
    "an empty tool list": (CHAT, chat(tools=[], tool_choice="auto")),
    "top_k off as vLLM says it": (CHAT, chat(top_k=-1)),
    "template variables": (CHAT, chat(chat_template_kwargs={"a": True, "b": None})),
    "a long template variable": (CHAT, chat(chat_template_kwargs={"a": "x" * 16_000})),
    "completion": (COMPLETIONS, completion()),
    "a prompt up to the context": (COMPLETIONS, completion(prompt=[1] * 4094)),
    "64 prompts": (COMPLETIONS, completion(prompt=["a"] * 64)),
    "best_of n": (COMPLETIONS, completion(best_of=2, n=2)),
    "tokenize": ("/tokenize", b'{"prompt": "x"}'),
    "tokenize nothing much": ("/tokenize", b'{"prompt": ""}'),
    "tokenize with tools": ("/tokenize", chat(tools=[FUNCTION])),
    "tokenize no tools": ("/tokenize", b'{"prompt": "x", "tools": []}'),
    "detokenize": ("/detokenize", b'{"tokens": [104, 105]}'),
    "detokenize the context": ("/detokenize", json.dumps({"tokens": [104] * 4096}).encode()),
}


@pytest.mark.parametrize("name", CORPUS)
def test_one_typed_answer(served: Served, engine: FakeEngine, name: str) -> None:
    path, body = CORPUS[name]
    answer = post(served, path, body)
    assert answer.status == 400, answer.body
    assert answer.error["type"] == "invalid_request_error"
    assert answer.error["message"]
    assert answer.headers["x-request-id"]
    assert answer.headers["content-type"] == "application/json"
    if name in PARAMS:
        assert answer.error["param"] == PARAMS[name]
    if name in CODES:
        assert answer.error["code"] == CODES[name]
    assert engine.requests == []


@pytest.mark.parametrize("name", GOOD)
def test_its_control_is_answered(served: Served, engine: FakeEngine, name: str) -> None:
    path, body = GOOD[name]
    answer = post(served, path, body)
    assert answer.status == 200, answer.body


def test_streams_of_malformed_requests_are_statuses_too(served: Served, engine: FakeEngine) -> None:
    for name, body in CHATS.items():
        if name.startswith("stream"):
            continue
        answer = post(served, CHAT, body[:-1] + b', "stream": true}')
        assert answer.status == 400, name
        assert answer.error["message"]


def test_an_unknown_model_is_404(served: Served, engine: FakeEngine) -> None:
    for path, body in (
        (CHAT, chat(model="gpt-9")),
        (COMPLETIONS, completion(model="gpt-9")),
        ("/tokenize", b'{"model": "gpt-9", "prompt": "x"}'),
    ):
        answer = post(served, path, body)
        assert (answer.status, answer.error["code"]) == (404, "model_not_found")
        assert answer.error["param"] == "model"


def test_errors_do_not_repeat_what_they_refuse(served: Served, engine: FakeEngine) -> None:
    canary = "canary-5f1c0a77"
    for body in (
        chat_saying("hi", role=canary),
        chat(model=canary),
        chat(stop=[canary * 40]),
        chat(logit_bias={canary: 1}),
        chat_saying([{"type": canary}]),
        chat_saying(canary * 400),
        f'{{"prompt": "{canary}'.encode(),
    ):
        answer = post(served, CHAT, body)
        assert answer.status in (400, 404)
        assert canary.encode() not in answer.body


def test_a_body_over_the_limit(served: Served, engine: FakeEngine) -> None:
    at_most = 1 << 20
    padding = b" " * (at_most - len(chat()))
    assert post(served, CHAT, chat() + padding).status == 200
    answer = post(served, CHAT, chat() + padding + b" ")
    assert (answer.status, answer.error["code"]) == (413, "request_too_large")


def test_a_declared_length_over_the_limit_is_not_waited_for(
    served: Served, engine: FakeEngine
) -> None:
    with connected(served) as connection:
        connection.sendall(head(served, CHAT, "content-length: 99999999999"))
        assert read_answer(connection).status == 413


@pytest.mark.parametrize("fields", [{}, {"connection": "close"}])
@pytest.mark.parametrize("is_chunked", [False, True])
async def test_a_client_that_sends_all_before_it_reads_sees_that_it_was_too_much(
    served: Served, fields: dict[str, str], is_chunked: bool
) -> None:
    """Answer a client that sends its whole body before it reads.

    httpx without threads does that. If the connection is lost meanwhile, httpx gets no answer.
    """
    piece, pieces = b" " * (1 << 20), 8

    async def in_pieces() -> AsyncIterator[bytes]:
        for _ in range(pieces):
            yield piece

    content = in_pieces() if is_chunked else piece * pieces
    headers = {"authorization": f"Bearer {served.key}", "content-type": "application/json"}
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as client:
        answer = await client.post(CHAT, content=content, headers=headers | fields)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")


def test_a_body_in_chunks_is_counted(served: Served, engine: FakeEngine) -> None:
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    with connected(served) as connection:
        connection.sendall(head(served, CHAT, "transfer-encoding: chunked"))
        for _ in range(17):
            connection.sendall(chunk)
        assert read_answer(connection).status == 413
    with connected(served) as connection:
        connection.sendall(head(served, CHAT, "transfer-encoding: chunked") + chunk)
        connection.sendall(b"%x\r\n%s\r\n0\r\n\r\n" % (len(chat()), chat()))
        assert read_answer(connection).status == 200


@pytest.mark.parametrize("times", [1, 10_000])
def test_an_error_quotes_no_more_than_fits_into_it(served: Served, times: int) -> None:
    tag = {"type": "const_string", "value": "a", "unknown" * times: 1}
    answer = post(served, CHAT, chat(response_format={"type": "structural_tag", "format": tag}))
    assert answer.status == 400
    assert "unknown" in answer.error["message"]
    assert len(answer.error["message"]) <= 1000
    assert len(answer.error["param"]) <= 200


def test_a_length_that_is_too_short_is_what_counts(served: Served, engine: FakeEngine) -> None:
    with connected(served) as connection:
        connection.sendall(head(served, CHAT, f"content-length: {len(chat()) - 1}") + chat())
        assert read_answer(connection).status == 400


def test_a_body_in_gzip_is_read_one_in_another_encoding_is_not(
    served: Served, engine: FakeEngine
) -> None:
    with connected(served) as connection:
        body = gzip.compress(chat())
        length = f"content-length: {len(body)}"
        for encoding, status in (("br", 415), ("gzip", 200)):
            extra = (f"content-encoding: {encoding}", length)
            connection.sendall(head(served, CHAT, *extra) + body)
            answer = read_answer(connection)
            assert answer.status == status
        connection.sendall(head(served, CHAT, "content-encoding: gzip", length) + body[:-1] + b"x")
        assert read_answer(connection).error["code"] == "invalid_encoding"
        connection.sendall(head(served, CHAT, f"content-length: {len(chat())}") + chat())
        assert read_answer(connection).status == 200
    # the body is compressed, but the header does not say so
    assert post(served, CHAT, body).error["code"] == "invalid_json"


@pytest.mark.parametrize("key", ["", "sk-wrong", "x" * 10_000, "é", "sk-" + "a" * 43])
def test_a_wrong_key_is_401_before_the_body_is_read(
    served: Served, engine: FakeEngine, key: str
) -> None:
    with connected(served) as connection:
        connection.sendall(head(served, CHAT, "content-length: 1000", key=key or "-"))
        answer = read_answer(connection)
    assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
    assert answer.headers["www-authenticate"] == "bearer"


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file"])
def test_what_no_model_here_reads_is_said(served: Served, kind: str) -> None:
    headers = {"authorization": f"Bearer {served.key}"}
    parts = [{"type": "text", "text": "what is this?"}, {"type": kind, kind: {}}]
    answer = httpx.post(
        f"{served.url}/v1/chat/completions", headers=headers, content=chat_saying(parts)
    )
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert "not images, audio or files" in error["message"]
    assert error["param"].endswith(".type")
