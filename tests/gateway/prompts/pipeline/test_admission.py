from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from engine.link.messages import SamplingParams, pack_logit_bias
from gateway.caller import Caller
from gateway.config import Bounds
from gateway.errors import BadRequest, Unavailable
from gateway.processes.fair_executor import INLINE_SIZE, FairExecutor, LoopTime, Steps
from gateway.prompts.answer_forms import AnswerForms
from gateway.prompts.chats.messages import stored_message
from gateway.prompts.generation_request import ChatPrompt, GenerationRequest, Prompt, TextRules
from gateway.prompts.pipeline.admission import Admission
from gateway.prompts.templates.chat_template import ChatTemplate
from gateway.prompts.tokens.control_tokens import Rendered
from gateway.prompts.tokens.tokenizer import TokenIds, Tokenizer
from gateway.sharing.namespaces import Namespaces, PublishedIndex
from gateway.state.records import EVERYONE
from gateway.tenant_limits import Limits
from prefix_cache.hashing import block_keys
from prefix_cache.namespace import NamespacePath
from tests.doubles.engine.fake_engine import WELCOME, prompt_of
from tests.doubles.engine.tiny_model import BOS, TURN
from tests.gateway.support.manual_clock import ManualClock

ADA = Caller("tenant-a", "key-1", weight=2.0)
BOB = Caller("tenant-b", "key-2")
NAMESPACES = Namespaces(b"s" * 32)


@pytest.fixture(scope="module")
def pool() -> Iterator[FairExecutor]:
    with closing(FairExecutor(1, LoopTime(lambda: 0.0))) as pool:
        yield pool


@pytest.fixture
def admission(tiny_model: Path, pool: FairExecutor) -> Admission:
    return Admission(
        Tokenizer.load(tiny_model),
        ChatTemplate.load(tiny_model, Tokenizer.load(tiny_model).control),
        NAMESPACES,
        lambda: WELCOME,
        pool,
        Bounds(),
        AnswerForms(),
    )


@pytest.fixture
def roomy(tiny_model: Path, pool: FairExecutor) -> Admission:
    """Make an admission whose context length allows long prompts."""
    template = ChatTemplate.load(tiny_model, Tokenizer.load(tiny_model).control)
    welcome = msgspec.structs.replace(WELCOME, max_model_len=1 << 20)
    return Admission(
        Tokenizer.load(tiny_model),
        template,
        NAMESPACES,
        lambda: welcome,
        pool,
        Bounds(),
        AnswerForms(),
    )


def held_up(pool: FairExecutor, release: threading.Event) -> asyncio.Task[bool]:
    """Run another tenant's work, which occupies the only thread until `release` is set."""

    def work() -> Steps[bool]:
        yield from ()
        return release.wait(10)

    return asyncio.create_task(pool.run("tenant-c", work(), INLINE_SIZE + 1))


async def count(admission: Admission, prompt: Prompt) -> int:
    """Return the number of tokens in a prompt, as `/tokenize` counts them."""

    def show(token_ids: TokenIds) -> Steps[int]:
        yield from ()
        return len(token_ids)

    return await admission.tokenize(prompt, ADA, show, add_special_tokens=False)


def ids(*token_ids: int) -> TokenIds:
    return np.array(token_ids, np.int32)


def generation_request(
    *prompts: Prompt,
    choices: int = 1,
    max_tokens: int = 4,
    may_shrink: bool = False,
    salt: str | None = None,
    seed: int | None = None,
) -> GenerationRequest:
    return GenerationRequest(
        request_id="r",
        prompts=prompts,
        choices=choices,
        sampling=SamplingParams(max_tokens=max_tokens, seed=seed),
        max_tokens_may_shrink=may_shrink,
        text=TextRules(),
        salt=salt,
    )


async def test_prompts_times_choices(admission: Admission) -> None:
    admitted = await admission.admit(generation_request("ab", ids(1, 2, 3), choices=2), ADA)
    assert [prompt_of(generate) for generate in admitted.generates] == [
        [BOS, 97, 98],
        [BOS, 97, 98],
        [1, 2, 3],
        [1, 2, 3],
    ]
    assert [generate.request_id for generate in admitted.generates] == ["r-0", "r-1", "r-2", "r-3"]
    assert admitted.prompt_tokens == 6
    assert {(generate.flow, generate.weight) for generate in admitted.generates} == {
        ("tenant-a", 2.0)
    }


async def test_what_admission_returns_cannot_be_changed(admission: Admission) -> None:
    admitted = await admission.admit(generation_request("ab"), ADA)
    with pytest.raises(AttributeError):
        admitted.choices = 2  # type: ignore[misc]
    with pytest.raises(AttributeError):
        admitted.generates[0].flow = "other"  # type: ignore[misc]


async def test_block_keys_and_namespace_are_the_callers(admission: Admission) -> None:
    (generate,) = (await admission.admit(generation_request(ids(*[7] * 40)), ADA)).generates
    namespace = NAMESPACES.own(ADA, None, WELCOME.fingerprint)
    path = NamespacePath.single(namespace)
    assert generate.namespaces == path.spans
    assert generate.block_keys == block_keys(path, np.full(40, 7, np.int32), 16)
    assert len(generate.block_keys) == 2 * 16
    (other,) = (await admission.admit(generation_request(ids(*[7] * 40)), BOB)).generates
    assert other.namespaces != generate.namespaces
    assert other.block_keys != generate.block_keys


async def test_the_published_part_of_each_prompt_lies_in_its_own_namespace(
    tiny_model: Path, pool: FairExecutor
) -> None:
    published = PublishedIndex()
    published.renew(WELCOME.block_size, [(EVERYONE, ids(*range(40)))])
    namespaces = Namespaces(b"s" * 32, published=published)
    admission = Admission(
        Tokenizer.load(tiny_model), None, namespaces, lambda: WELCOME, pool, Bounds(), AnswerForms()
    )
    prompts = (ids(*range(50)), ids(*range(1, 50)))
    asked = generation_request(*prompts, salt="pepper")
    published_ones = (await admission.admit(asked, ADA)).generates
    shared, private = (NamespacePath(generate.namespaces) for generate in published_ones)  # type: ignore[arg-type]
    everyones = namespaces.published(EVERYONE, WELCOME.fingerprint)
    own = namespaces.own(ADA, "pepper", WELCOME.fingerprint)
    assert shared.spans == ((0, everyones), (2, own))
    assert private.spans == ((0, own),)
    for generate, path, prompt in zip(published_ones, (shared, private), prompts, strict=True):
        assert generate.block_keys == block_keys(path, prompt, WELCOME.block_size)


@pytest.mark.parametrize("size", [10, 20_000])
async def test_long_prompts_are_prepared_off_the_loop(
    roomy: Admission, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []
    encode = Tokenizer.encode

    def watched(self: Tokenizer, text: str, *, add_special_tokens: bool) -> object:
        threads.append(threading.current_thread())
        return encode(self, text, add_special_tokens=add_special_tokens)

    monkeypatch.setattr(Tokenizer, "encode", watched)
    assert await count(roomy, "x" * size) == size
    assert (threads == [threading.main_thread()]) == (size == 10)


async def test_short_prompts_too_once_their_tenant_has_used_up_its_time(
    roomy: Admission, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, threads = ManualClock(), []
    encode = Tokenizer.encode

    def slow(self: Tokenizer, text: str, *, add_special_tokens: bool) -> object:
        clock.advance(1.0)
        threads.append(threading.current_thread() is threading.main_thread())
        return encode(self, text, add_special_tokens=add_special_tokens)

    monkeypatch.setattr(Tokenizer, "encode", slow)
    with closing(FairExecutor(1, LoopTime(clock))) as pool:
        monkeypatch.setattr(roomy, "_pool", pool)
        for caller in (ADA, ADA, BOB):
            await roomy.admit(generation_request("x"), caller)
    assert threads == [True, False, True]


async def test_the_loop_goes_on_while_a_prompt_is_prepared(
    roomy: Admission, pool: FairExecutor
) -> None:
    release = threading.Event()
    other = held_up(pool, release)
    await asyncio.sleep(0)
    waiting = asyncio.create_task(count(roomy, "x" * 20_000))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not waiting.done()
    release.set()
    assert await waiting == 20_000
    assert await other


async def test_tools_count_as_work_too(roomy: Admission, pool: FairExecutor) -> None:
    release = threading.Event()
    other = held_up(pool, release)
    await asyncio.sleep(0)
    few: list[dict[str, Any]] = [{"type": "function", "function": {"name": "f"}}]
    many = [{"type": "function", "function": {"name": "f", "description": "x" * 3000}}] * 2
    message = stored_message({"role": "user", "content": "hi"})
    assert await count(roomy, ChatPrompt((message,), tools=few, tools_size=60))
    waiting = asyncio.create_task(count(roomy, ChatPrompt((message,), tools=many, tools_size=6100)))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not waiting.done()
    release.set()
    assert await waiting > 6000
    assert await other


async def test_a_tenants_requests_are_as_long_as_its_limit_and_the_model_allow(
    admission: Admission,
) -> None:
    def within(most: int) -> Caller:
        return msgspec.structs.replace(ADA, limits=Limits(max_request_tokens=most))

    (fits,) = (await admission.admit(generation_request(ids(*[1] * 96)), within(100))).generates
    assert fits.sampling.max_tokens == 4
    for most, prompt, text in (
        (100, 97, "100 tokens for this tenant"),
        (5000, 4093, "4096 tokens,"),
    ):
        with pytest.raises(BadRequest, match=text) as refused:
            await admission.admit(generation_request(ids(*[1] * prompt)), within(most))
        assert refused.value.code == "context_length_exceeded"
    shrinks = generation_request(ids(*[1] * 97), may_shrink=True)
    (cut,) = (await admission.admit(shrinks, within(100))).generates
    assert cut.sampling.max_tokens == 3


@pytest.mark.parametrize("longest", ["x" * 1_000_000, np.ones(4096, np.int32)])
async def test_no_prompt_is_tokenised_before_one_that_cannot_fit(
    admission: Admission, monkeypatch: pytest.MonkeyPatch, longest: Prompt
) -> None:
    read = list[str]()
    encode = admission.tokenizer.encode

    def noted(prompt: str | Rendered, *, add_special_tokens: bool) -> TokenIds:
        read.append(str(prompt))
        return encode(prompt, add_special_tokens=add_special_tokens)

    monkeypatch.setattr(admission.tokenizer, "encode", noted)
    with pytest.raises(BadRequest) as refused:
        await admission.admit(generation_request("one", "two", longest), ADA)
    assert refused.value.code == "context_length_exceeded"
    assert not read
    short = msgspec.structs.replace(ADA, limits=Limits(max_request_tokens=10))
    with pytest.raises(BadRequest, match="10 tokens for this tenant"):
        await admission.admit(generation_request("one", "x" * 1000), short)
    assert not read
    await admission.admit(generation_request("one", "two", "x" * 1000), ADA)
    assert len(read) == 3, "the control"


async def test_the_context_is_for_prompt_and_answer(admission: Admission) -> None:
    (fits,) = (await admission.admit(generation_request(ids(*[1] * 4092)), ADA)).generates
    assert fits.sampling.max_tokens == 4
    with pytest.raises(BadRequest) as refused:
        await admission.admit(generation_request(ids(*[1] * 4093)), ADA)
    assert refused.value.code == "context_length_exceeded"
    (cut,) = (
        await admission.admit(generation_request(ids(*[1] * 4093), may_shrink=True), ADA)
    ).generates
    assert cut.sampling.max_tokens == 3
    for prompt_tokens in (4096, 5000):
        with pytest.raises(BadRequest, match=f" {prompt_tokens + 1} tokens with the answer"):
            await admission.admit(
                generation_request(ids(*[1] * prompt_tokens), may_shrink=True), ADA
            )
    with pytest.raises(BadRequest, match=" 4097 tokens with the answer"):
        await admission.admit(generation_request("x" * 4095, may_shrink=True), ADA)


async def test_choices_of_a_seeded_request_differ_and_are_the_same_every_time(
    admission: Admission,
) -> None:
    top = 2**63 - 1
    first, second = [
        [
            generate.sampling.seed
            for generate in (
                await admission.admit(generation_request("x", choices=3, seed=top), ADA)
            ).generates
        ]
        for _ in range(2)
    ]
    assert first == second == [top, -(2**63), -(2**63) + 1]
    unseeded = (await admission.admit(generation_request("x", choices=2), ADA)).generates
    assert [generate.sampling.seed for generate in unseeded] == [None, None]


async def test_a_chat_is_rendered(admission: Admission) -> None:
    chat = ChatPrompt(
        tuple(
            stored_message({"role": role, "content": content})
            for role, content in (("user", "a"), ("assistant", "b "))
        ),
        add_generation_prompt=False,
        continue_final_message=True,
    )
    (generate,) = (await admission.admit(generation_request(chat), ADA)).generates
    assert prompt_of(generate) == [BOS, TURN, *b"user:a", TURN, *b"assistant:b "]


async def test_no_template_no_chat(tiny_model: Path, pool: FairExecutor) -> None:
    admission = Admission(
        Tokenizer.load(tiny_model), None, NAMESPACES, lambda: WELCOME, pool, Bounds(), AnswerForms()
    )
    with pytest.raises(BadRequest, match="no chat template"):
        await admission.admit(
            generation_request(ChatPrompt((stored_message({"role": "user", "content": "a"}),))), ADA
        )
    assert (await admission.admit(generation_request("a"), ADA)).generates


async def test_no_engine_no_admission(tiny_model: Path, pool: FairExecutor) -> None:
    admission = Admission(
        Tokenizer.load(tiny_model), None, NAMESPACES, lambda: None, pool, Bounds(), AnswerForms()
    )
    with pytest.raises(Unavailable) as away:
        await admission.admit(generation_request("a"), ADA)
    assert away.value.retry_after_s


async def test_every_vocabulary_check_is_against_the_engines(
    tiny_model: Path, pool: FairExecutor
) -> None:
    small = msgspec.structs.replace(WELCOME, vocab_size=100)
    admission = Admission(
        Tokenizer.load(tiny_model), None, NAMESPACES, lambda: small, pool, Bounds(), AnswerForms()
    )
    for end in (0, 99):
        named = SamplingParams(
            max_tokens=4, logit_bias=pack_logit_bias({end: 1.0}), stop_token_ids=frozenset((end,))
        )
        asked = dataclasses.replace(generation_request(ids(end)), sampling=named)
        assert (await admission.admit(asked, ADA)).generates
    with pytest.raises(BadRequest):
        await admission.admit(generation_request(ids(100)), ADA)


async def test_every_choice_of_every_prompt_bears_the_label(admission: Admission) -> None:
    admitted = await admission.admit(generation_request(ids(1, 2), ids(3), choices=2), ADA, "a row")
    assert [generate.writer for generate in admitted.generates] == ["a row"] * 4
    unlabelled = await admission.admit(generation_request(ids(1, 2)), ADA)
    assert unlabelled.generates[0].writer == ""
