"""The model's blocks end where an activated adapter starts, in another namespace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import pytest

from engine.link.messages import AdapterUse, Generate, SamplingParams
from gateway.caller import Caller
from gateway.config import Bounds
from gateway.errors import BadRequest
from gateway.processes.fair_executor import FairExecutor, LoopTime
from gateway.prompts.answer_forms import AnswerForms
from gateway.prompts.generation_request import GenerationRequest, TextRules
from gateway.prompts.pipeline.admission import Admission
from gateway.prompts.tokens.tokenizer import Tokenizer
from gateway.sharing.namespaces import Namespaces, PublishedIndex
from gateway.state.records import EVERYONE
from gateway.tenant_adapters import TenantAdapter
from prefix_cache.hashing import KEY_BYTES, block_keys
from prefix_cache.namespace import Namespace, NamespacePath, adapted_fingerprint
from tests.doubles.engine.fake_engine import WELCOME

ADA = Caller("ada", "key")
NAMESPACES = Namespaces(b"s" * 32)
SIZE = WELCOME.block_size
INVOCATION = (7, 8)
ACTIVATED = TenantAdapter(
    name="judge",
    path="ada/judge",
    digest="ab" * 32,
    rank=8,
    num_bytes=1,
    created_at=0.0,
    invocation=INVOCATION,
)
PLAIN = msgspec.structs.replace(ACTIVATED, invocation=())
BEFORE = [(5 * at) % 90 + 10 for at in range(2 * SIZE + 3)]
PROMPT = [*BEFORE, *INVOCATION, *BEFORE]


@pytest.fixture(scope="module")
def admission(tiny_model: Path) -> Iterator[Admission]:
    with closing(FairExecutor(1, LoopTime(lambda: 0.0))) as pool:
        tokenizer, forms = Tokenizer.load(tiny_model), AnswerForms()
        yield Admission(tokenizer, None, NAMESPACES, lambda: WELCOME, pool, Bounds(), forms)


async def admitted(
    admission: Admission,
    adapter: TenantAdapter | None,
    prompt: list[int],
    max_tokens: int = 1,
    salt: str | None = None,
) -> Generate:
    wanted = GenerationRequest(
        request_id="r",
        prompts=(np.array(prompt, np.int32),),
        choices=1,
        sampling=SamplingParams(max_tokens=max_tokens),
        max_tokens_may_shrink=False,
        text=TextRules(),
        salt=salt,
        adapter=adapter,
    )
    return (await admission.admit(wanted, ADA)).generates[0]


async def test_the_models_blocks_end_where_an_activated_adapter_is_switched_on(
    admission: Admission,
) -> None:
    plain = await admitted(admission, None, PROMPT)
    got = await admitted(admission, ACTIVATED, PROMPT)
    digest, start = bytes.fromhex(ACTIVATED.digest), len(BEFORE)
    assert got.adapter == AdapterUse(digest, "ada/judge", start)
    of_adapter = NAMESPACES.own(ADA, None, adapted_fingerprint(WELCOME.fingerprint, digest, start))
    of_model = NAMESPACES.own(ADA, None, WELCOME.fingerprint)
    assert got.namespaces == ((0, of_model), (2, of_adapter))
    assert got.block_keys[: 2 * KEY_BYTES] == plain.block_keys[: 2 * KEY_BYTES]
    path, ids = NamespacePath(got.namespaces), np.array(PROMPT, np.int32)
    assert got.block_keys == block_keys(path, ids, SIZE)
    assert got.block_keys != plain.block_keys


async def test_the_last_place_counts_and_is_in_the_namespace(admission: Admission) -> None:
    """Start the adapter at its last invocation.

    The same tokens have different block keys before and after the start.
    """
    twice = await admitted(admission, ACTIVATED, [*PROMPT, *INVOCATION])
    assert twice.adapter is not None
    assert twice.adapter.start == len(PROMPT)
    once = await admitted(admission, ACTIVATED, PROMPT)
    assert twice.namespaces[0] == once.namespaces[0]
    assert twice.namespaces[1] != once.namespaces[1]
    first = await admitted(admission, ACTIVATED, list(INVOCATION))
    assert first.adapter is not None
    assert first.adapter.start == 0
    assert len(first.namespaces) == 1


async def test_a_salt_and_a_plain_adapter_have_namespaces_of_their_own(
    admission: Admission,
) -> None:
    got = [
        await admitted(admission, adapter, PROMPT, salt=salt)
        for adapter in (None, ACTIVATED, PLAIN)
        for salt in (None, "s")
    ]
    assert len({one for each in got for _, one in each.namespaces}) == 6
    assert got[4].adapter == AdapterUse(bytes.fromhex(PLAIN.digest), "ada/judge")
    assert len(got[4].namespaces) == 1


@pytest.mark.parametrize(
    ("adapter", "has_states", "scopes"),
    [
        (None, False, ["published", "own"]),
        (None, True, ["published", "own"]),
        (PLAIN, False, ["other"]),
        (ACTIVATED, False, ["published", "other"]),
        (ACTIVATED, True, ["own", "other"]),
    ],
)
async def test_what_an_adapter_computes_is_never_published(
    tiny_model: Path, adapter: TenantAdapter | None, has_states: bool, scopes: list[str]
) -> None:
    """Publish no block that an adapter computes.

    If an adapter starts within a published prefix, its recurrent state is not published either.
    """
    welcome = msgspec.structs.replace(WELCOME, has_states=has_states)
    index = PublishedIndex()
    published = np.array(PROMPT[: 4 * SIZE], np.int32)
    index.renew(SIZE, [(EVERYONE, published)], has_states=has_states)
    namespaces, tokenizer = Namespaces(b"s" * 32, published=index), Tokenizer.load(tiny_model)
    with closing(FairExecutor(1, LoopTime(lambda: 0.0))) as pool:
        forms, bounds = AnswerForms(), Bounds()
        admission = Admission(tokenizer, None, namespaces, lambda: welcome, pool, bounds, forms)
        got = await admitted(admission, adapter, PROMPT)
    names = {
        namespaces.own(ADA, None, WELCOME.fingerprint): "own",
        namespaces.published(EVERYONE, WELCOME.fingerprint): "published",
    }
    assert [names.get(Namespace(one), "other") for _, one in got.namespaces] == scopes


@pytest.mark.parametrize("prompt", [BEFORE, [7], [8, 7], [7, 9, 8]])
async def test_a_prompt_without_the_invocation_is_refused_if_it_is_answered(
    admission: Admission, prompt: list[int]
) -> None:
    with pytest.raises(BadRequest, match="judge") as refused:
        await admitted(admission, ACTIVATED, prompt)
    assert (refused.value.code, refused.value.param) == ("adapter_not_invoked", "model")
    warmed = await admitted(admission, ACTIVATED, prompt, max_tokens=0)
    assert warmed.adapter is None
    assert warmed.namespaces == (await admitted(admission, None, prompt)).namespaces
