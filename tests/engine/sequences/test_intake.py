"""Valid requests become sequences, and invalid requests are refused."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from engine.errors import InvalidRequest, PromptTooLong
from engine.link.messages import (
    Generate,
    LogitBias,
    SamplingParams,
    pack_logit_bias,
    pack_token_ids,
)
from engine.sequences.intake import Intake
from engine.sequences.request_checks import MAX_TOP_K
from tests.engine.rigs.rig import generate

INTAKE = Intake(vocab_size=64, block_size=4, max_model_len=40, fits=lambda tokens: tokens <= 32)
SOUND = generate("a", range(10), max_tokens=5)


def changed(**fields: object) -> Generate:
    return msgspec.structs.replace(SOUND, **fields)


def sampling(**fields: object) -> Generate:
    return changed(sampling=msgspec.structs.replace(SOUND.sampling, **fields))


def scored(likeliest: int, prompt: range = range(10), times: int = 1) -> Generate:
    ids = pack_token_ids([*prompt] * times)
    asked = msgspec.structs.replace(SOUND.sampling, prompt_logprobs=likeliest)
    return changed(token_ids=ids, sampling=asked, use_cache=False)


def test_a_sound_request_becomes_a_sequence() -> None:
    sequence = INTAKE.accept(b"gateway", SOUND, 12.5)
    assert sequence.token_ids.tolist() == list(range(10))
    assert len(sequence.tokens) == 15
    assert sequence.tokens.dtype == np.int32
    assert (sequence.prompt_len, sequence.num_tokens, sequence.arrived) == (10, 10, 12.5)
    assert sequence.path.spans == SOUND.namespaces
    assert sequence.lease is None
    assert INTAKE.accept(b"gateway", changed(writer="me"), 0.0).writer == "me"


UNSOUND = {
    "empty prompt": changed(token_ids=b"", block_keys=b""),
    "half a token": changed(token_ids=bytes(41)),
    "token over the vocabulary": changed(token_ids=pack_token_ids([64] * 10)),
    "negative token": changed(token_ids=pack_token_ids([-1] * 10)),
    "no block keys": changed(block_keys=b""),
    "too many block keys": changed(block_keys=bytes(48)),
    "half a block key": changed(block_keys=bytes(40)),
    "no namespace": changed(namespaces=()),
    "namespace of 15 bytes": changed(namespaces=((0, bytes(15)),)),
    "namespaces not from zero": changed(namespaces=((1, bytes(16)),)),
    "namespaces that fall": changed(namespaces=((0, bytes(16)), (2, bytes(16)), (1, bytes(16)))),
    "empty id": changed(request_id=""),
    "huge id": changed(request_id="x" * 10_000),
    "huge flow": changed(flow="x" * 10_000),
    "huge writer": changed(writer="x" * 10_000),
    "weight zero": changed(weight=0.0),
    "weight negative": changed(weight=-1.0),
    "weight NaN": changed(weight=math.nan),
    "weight infinite": changed(weight=math.inf),
    "fewer tokens than none": sampling(max_tokens=-1),
    "negative min_tokens": sampling(min_tokens=-1),
    "negative top_k": sampling(top_k=-1),
    "huge top_k": sampling(top_k=2**63),
    "top_k one too large": sampling(top_k=MAX_TOP_K + 1),
    "temperature NaN": sampling(temperature=math.nan),
    "temperature negative": sampling(temperature=-0.1),
    "top_p infinite": sampling(top_p=math.inf),
    "repetition penalty zero": sampling(repetition_penalty=0.0),
    "repetition penalty zero in float32": sampling(repetition_penalty=1e-300),
    "presence penalty infinite in float32": sampling(presence_penalty=1e39),
    "bias infinite": sampling(logit_bias=pack_logit_bias({1: -math.inf})),
    "bias NaN": sampling(logit_bias=pack_logit_bias({2: 1.0, 1: math.nan})),
    "bias of an unknown token": sampling(logit_bias=pack_logit_bias({1: 1.0, 64: 1.0})),
    "bias of a negative token": sampling(logit_bias=pack_logit_bias({-1: 1.0})),
    "bias without a token": sampling(logit_bias=LogitBias(b"", bytes(4))),
    "token without a bias": sampling(logit_bias=LogitBias(bytes(4), b"")),
    "half a bias": sampling(logit_bias=LogitBias(bytes(6), bytes(6))),
    "stop token unknown": sampling(stop_token_ids=(64,)),
    "stop token negative": sampling(stop_token_ids=(-1,)),
    "too many stop tokens": sampling(stop_token_ids=range(5000)),
    "too many logprobs": sampling(num_logprobs=65),
    "negative logprobs": sampling(num_logprobs=-1),
    "scored, and from the cache": sampling(prompt_logprobs=1),
    "too many logprobs of the prompt": scored(65),
    "negative logprobs of the prompt": scored(-1),
    "more logprobs of a prompt than a message holds": scored(60, range(64), 200),
    "seed over 64 bits": sampling(seed=2**63),
}


@pytest.mark.parametrize("name", UNSOUND)
def test_an_unsound_request_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest):
        INTAKE.accept(b"gateway", UNSOUND[name], 0.0)


def test_numbers_that_float32_has_are_taken() -> None:
    wishes = sampling(
        repetition_penalty=1.2e-38, presence_penalty=-3e38, logit_bias=pack_logit_bias({1: 3e38})
    )
    assert INTAKE.accept(b"gateway", wishes, 0.0).sampling == wishes.sampling


@pytest.mark.parametrize(
    ("prompt_len", "max_tokens", "fits"),
    [
        (10, 22, True),
        (10, 23, False),  # more tokens than the pool holds
        (39, 1, False),
        (40, 1, False),  # more tokens than the context holds
        (10, 2**62, False),
        (31, 1, True),
    ],
)
def test_lengths(prompt_len: int, max_tokens: int, fits: bool) -> None:
    request = generate("a", [1] * prompt_len, max_tokens=max_tokens)
    if fits:
        assert INTAKE.accept(b"gateway", request, 0.0).prompt_len == prompt_len
    else:
        with pytest.raises(PromptTooLong):
            INTAKE.accept(b"gateway", request, 0.0)


def test_a_request_without_cache_needs_no_block_keys() -> None:
    request = changed(use_cache=False, block_keys=b"")
    assert not INTAKE.accept(b"gateway", request, 0.0).use_cache


def test_bounds_are_inclusive() -> None:
    params = SamplingParams(
        max_tokens=1,
        temperature=0.0,
        num_logprobs=64,
        top_k=MAX_TOP_K,
        stop_token_ids=frozenset((0, 63)),
        logit_bias=pack_logit_bias({63: -100.0}),
        seed=-(2**63),
    )
    assert INTAKE.accept(b"gateway", changed(sampling=params), 0.0).sampling == params
