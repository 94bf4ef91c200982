"""A large unstreamed answer is encoded off the event loop in pieces, with the same result as at
once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from fastapi import Request

from engine.link.event_messages import Reused, TokenLogprobs
from gateway.caller import Caller
from gateway.dialects.dialect_request import DialectRequest
from gateway.dialects.finished_choice import FinishedChoice, gather
from gateway.dialects.openai.answers.chat_reply import ChatReply
from gateway.dialects.openai.answers.rendering import ReplyFormat
from gateway.dialects.openai.completions import CompletionReply
from gateway.generation.choice import ChoiceEnded, Delta, Event, ScoredPrompt
from gateway.processes.fair_executor import INLINE_SIZE, Steps, at_once
from gateway.prompts.pipeline.admission import Admission
from gateway.prompts.tokens.tokenizer import Tokenizer
from gateway.requests.permits import Permit
from gateway.requests.request_usage import Usage

USAGE = Usage(3, 0, 5)
PROMPT = np.array([104, 105, 33], "<i4").tobytes()
FIELDS: dict[str, Any] = {
    "id": "x",
    "created": 1,
    "model": "m",
    "fingerprint": "f",
    "include_usage": False,
}


class Apart:
    """A double of `Admission` that records the size of the work done off the event loop."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    async def spell(self, caller: Caller, work: Steps[Any], size: int) -> Any:
        del caller
        self.sizes.append(size)
        return at_once(work)


class Permitted:
    """A double of a `Permit`."""

    caller = Caller("tn", "key")


def scores(random: Random, tops: int) -> TokenLogprobs:
    ids = np.array([random.randrange(250) for _ in range(tops)], "<i4").tobytes()
    return TokenLogprobs(-random.random(), ids, random.randbytes(4 * tops), 1)


async def answer(choices: int, tokens: int, tops: int) -> AsyncIterator[Event]:
    """Yield the events of several choices, one token of each choice in turn."""
    random = Random(0)
    told = tuple(scores(random, tops) for _ in range(2))
    for at in range(tokens):
        for index in range(choices):
            token = random.randrange(97, 122)
            yield Delta(
                index,
                chr(token),
                (token,),
                (scores(random, tops),),
                reused=None if at else Reused(),
                prompt=None if at else ScoredPrompt(PROMPT, told),
            )
    for index in range(choices):
        yield ChoiceEnded(index, "length", tokens)


def chat(tokenizer: Tokenizer) -> ReplyFormat:
    return ChatReply(
        **FIELDS, tokenizer=tokenizer, shows_ids=True, request_id="r" * 32, prompt_logprobs=5
    )


def completion(tokenizer: Tokenizer) -> ReplyFormat:
    echo = (np.frombuffer(PROMPT, "<i4"),)
    return CompletionReply(
        **FIELDS,
        tokenizer=tokenizer,
        echoed=echo,
        choices=1000,
        skip_special_tokens=True,
        has_logprobs=True,
        prompt_logprobs=5,
    )


async def in_pieces(reply: ReplyFormat, choices: list[FinishedChoice]) -> tuple[list[bytes], Apart]:
    permit, apart = cast("Permit", Permitted()), Apart()
    asked = DialectRequest(None, reply, cast("Request", None), permit)
    pieces = asked._pieces(choices, USAGE, cast("Admission", apart))
    return [one async for one in pieces], apart


@pytest.mark.parametrize("made", [chat, completion])
@pytest.mark.parametrize(("size", "is_large"), [((2, 5, 3), False), ((20, 60, 20), True)])
async def test_it_is_the_same_and_large_work_is_done_elsewhere(
    tiny_model: Path, made: Any, size: tuple[int, int, int], *, is_large: bool
) -> None:
    tokenizer = Tokenizer.load(tiny_model)
    choices = await gather(answer(*size))
    pieces, apart = await in_pieces(made(tokenizer), choices)
    at_once_ = msgspec.json.encode(made(tokenizer).whole(choices, USAGE), enc_hook=list)
    assert b"".join(pieces) == at_once_
    assert (len(pieces) > 2) is is_large
    assert {one > INLINE_SIZE for one in apart.sizes} == {is_large}


@pytest.mark.parametrize("made", [chat, completion])
async def test_whole_and_streamed_tell_the_same_of_each_token(tiny_model: Path, made: Any) -> None:
    tokenizer = Tokenizer.load(tiny_model)
    whole = made(tokenizer).whole(await gather(answer(2, 30, 5)), USAGE)
    reply, events = made(tokenizer), [one async for one in answer(2, 30, 5)]
    frames = b"".join(filter(None, map(reply.frame, events))).split(b"\n\n")
    told = [msgspec.json.decode(one[6:])["choices"][0] for one in frames if one]
    for choice in msgspec.json.decode(msgspec.json.encode(whole, enc_hook=list))["choices"]:
        mine = [one["logprobs"] for one in told if one["index"] == choice["index"]]
        for name, value in choice["logprobs"].items():
            parts = [one[name] for one in mine if one and one[name] is not None]
            assert value == ([*chain.from_iterable(parts)] if parts else None)


async def test_what_is_held_is_told_as_it_grows() -> None:
    grown: list[int] = []
    choices = await gather(answer(3, 50, 5), grown.append)
    [logprobs] = {choice.logprobs.nbytes for choice in choices if choice.logprobs is not None}
    assert logprobs == 50 * 60
    least = 3 * (logprobs + 50 * 4 + 50)
    assert least < sum(grown) < 1.5 * least
    assert max(grown) < least / 20
    assert sum(choice.work for choice in choices) > 3 * logprobs
