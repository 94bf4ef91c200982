"""Token ids parsed directly into an array equal those of the strict parser."""

from __future__ import annotations

import json
from typing import Any, Never

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.openai.requests import prompts
from gateway.dialects.openai.requests.prompts import prompts_of, token_ids_in
from gateway.dialects.openai.requests.schema import CompletionRequest
from gateway.errors import BadRequest
from gateway.prompts.generation_request import ChatPrompt

TOP = 2**31 - 1
COMPLETION = msgspec.json.Decoder(CompletionRequest)
IDS = st.lists(st.integers(0, TOP), min_size=1, max_size=50)


def raw(spelled: bytes) -> msgspec.Raw:
    """Return `spelled` as a body's raw prompt field, if it is valid JSON."""
    return COMPLETION.decode(b'{"model": "m", "prompt": %b}' % spelled).prompt


def shown(found: tuple[Any, ...]) -> list[Any]:
    return [prompt.tolist() if isinstance(prompt, np.ndarray) else prompt for prompt in found]


@given(IDS, st.sampled_from([None, (",", ":"), (" ,", ":"), ("\n,\t", ":")]), st.booleans())
def test_any_spelling_of_a_list_is_the_list(
    ids: list[int], separators: tuple[str, str] | None, is_indented: bool
) -> None:
    text = json.dumps(ids, separators=separators, indent=2 if is_indented else None)
    (found,) = prompts_of(raw(text.encode()), 128, 4096)
    assert isinstance(found, np.ndarray)
    assert found.dtype == np.int32
    assert found.tolist() == ids


@given(st.lists(st.integers(-3, 3) | st.integers(TOP - 1, 2**66) | st.floats(0, 9), max_size=9))
def test_what_is_read_at_once_is_what_the_strict_parser_allows(items: list[float]) -> None:
    spelled = json.dumps(items).encode()
    strictly = all(isinstance(item, int) and 0 <= item <= TOP for item in items) and items
    found = token_ids_in(spelled, 4096)
    assert (found is not None) == bool(strictly)
    if found is not None:
        assert found.tolist() == items


@pytest.mark.parametrize(
    ("spelled", "expected"),
    [
        (b'"a"', ["a"]),
        (b'["a", "b"]', ["a", "b"]),
        (b"[[1, 2], [3]]", [[1, 2], [3]]),
        (b"[0]", [[0]]),
        (b"[ 1,2 , 3 ]", [[1, 2, 3]]),
        (b"[1 ,2]", [[1, 2]]),
        (b"[1\n,2]", [[1, 2]]),
        (b"[2147483647]", [[TOP]]),
        (b'"[1, 2]"', ["[1, 2]"]),
    ],
)
def test_texts_and_batches(spelled: bytes, expected: list[Any]) -> None:
    assert shown(prompts_of(raw(spelled), 128, 4096)) == expected


@pytest.mark.parametrize(
    ("spelled", "param"),
    [
        (b"[]", "prompt"),
        (b"[ ]", "prompt"),
        (b'""', "prompt"),
        (b'["a", 1]', "prompt"),
        (b'[[1], "a"]', "prompt"),
        (b"[1, [2]]", "prompt"),
        (b"[1, 2147483648]", "prompt[1]"),
        (b"[1, 18446744073709551621]", "prompt[1]"),
        (b"[1, -2]", "prompt[1]"),
        (b"[1, 2.5]", "prompt[1]"),
        (b"[1, null]", "prompt[1]"),
        (b"[[1, -1]]", "prompt[0][1]"),
        (b"null", "prompt"),
        (b"7", "prompt"),
        (b"{}", "prompt"),
    ],
)
def test_what_is_refused_is_named(spelled: bytes, param: str) -> None:
    with pytest.raises(BadRequest) as refused:
        prompts_of(raw(spelled), 128, 4096)
    assert refused.value.param == param


@pytest.mark.parametrize(
    "spelled",
    [b"[1 2]", b"[01]", b"[1,,2]", b"[1,]", b"[,1]", b"[+1]", b"[1_0]", b"[1", b"[]]", b"[0x1]"],
)
def test_invalid_json_is_refused_by_the_body_s_parser(spelled: bytes) -> None:
    """Refuse invalid JSON in the body's parser, although the array reader would accept some of
    it.
    """
    with pytest.raises(msgspec.DecodeError):
        raw(spelled)


class Untouched:
    """A decoder that must not be called."""

    def decode(self, part: bytes) -> Never:
        raise AssertionError(f"{len(part)} bytes were parsed")


CONTEXT = 1000
TOO_MANY = [b"1"] * CONTEXT


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([b'"a"'] * 129, "`prompt` is 129, at most 128"),
        ([b'""'] * 129, "`prompt` is 129, at most 128"),
        ([b'"a"', *TOO_MANY], "`prompt` is 1001, at most 128"),
        ([b"[1]"] * 129, "`prompt` is 129, at most 128"),
        (TOO_MANY, "context length is 1000"),
        ([*TOO_MANY, b"-1"], "context length is 1000"),
        ([*TOO_MANY, b"1.5"], "context length is 1000"),
        ([b"-1", *TOO_MANY], "context length is 1000"),
        ([b"[%b]" % b",".join(TOO_MANY)], "context length is 1000"),
        ([b"[1]", b"[%b,-1]" % b",".join(TOO_MANY)], "context length is 1000"),
    ],
    ids=range(10),
)
def test_what_is_too_much_is_refused_unparsed(
    items: list[bytes], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompts, "_PART", Untouched())
    for spelled in (b"[" + b",".join(items) + b"]", b"[ " + b" , ".join(items) + b" ]"):
        with pytest.raises(BadRequest, match=message) as refused:
            prompts_of(raw(spelled), 128, CONTEXT)
        assert refused.value.param == "prompt"


def test_as_much_as_there_is_room_for_is_taken() -> None:
    for items in (TOO_MANY[1:], [b"[%b]" % b",".join(TOO_MANY[1:])] * 128, [b'"a,b"'] * 128):
        (first, *others) = prompts_of(raw(b"[" + b",".join(items) + b"]"), 128, CONTEXT)
        assert not isinstance(first, ChatPrompt)
        assert len(first) == (3 if isinstance(first, str) else CONTEXT - 1)
        assert len(others) == (0 if len(items) == CONTEXT - 1 else 127)


def test_a_bad_one_of_a_batch_is_named() -> None:
    for bad, param in ((b"[1,-1]", "prompt[2][1]"), (b"null", "prompt[2]")):
        with pytest.raises(BadRequest) as refused:
            prompts_of(raw(b"[[1],[2],%b,[3]]" % bad), 128, CONTEXT)
        assert refused.value.param == param
