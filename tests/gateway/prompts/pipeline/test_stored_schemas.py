"""Stored schemas of modules count as body memory of their tenant while requests read them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, closing
from pathlib import Path

import msgspec
import pytest

from engine.link.messages import SamplingParams
from gateway.caller import Caller
from gateway.config import Bounds
from gateway.errors import BadRequest, NotFound, TooManyRequests
from gateway.http.body_memory import BodyMemory
from gateway.processes.fair_executor import FairExecutor, at_once
from gateway.prompts.answer_forms import AnswerForms
from gateway.prompts.generation_request import AdmittedRequest, GenerationRequest, TextRules
from gateway.prompts.modules.joined import JoinedPrompt
from gateway.prompts.modules.schema import MOST_SCHEMA_BYTES, ModuleSpec, SchemaSpec
from gateway.prompts.modules.selection import ModulesOption
from gateway.prompts.pipeline.admission import Admission
from gateway.prompts.pipeline.module_prompts import ChosenModules, ModulePrompts
from gateway.prompts.tokens.tokenizer import Tokenizer
from gateway.sharing.namespaces import Namespaces
from gateway.state.records import ModuleSchema, Tenant
from gateway.tenant_limits import Limits
from tests.doubles.engine.fake_engine import WELCOME
from tests.gateway.state.memory_store import MemoryStore

CALLER, SERVED = Caller("tn_a", "key"), msgspec.structs.replace(WELCOME, has_modules=True)
OWN, SIZE = "tn_a", 500_000
SHORT = SchemaSpec(modules=tuple(ModuleSpec(name=name, text=name * 9) for name in "abc"))
SCHEMA = ModuleSchema(
    id="modules_1",
    tenant_id=OWN,
    created_at=1.0,
    content=msgspec.Raw(b'"' + b"x" * (SIZE - 2) + b'"'),
)


@pytest.fixture
async def admission(tiny_model: Path) -> AsyncIterator[Admission]:
    store, tokenizer = MemoryStore(), Tokenizer.load(tiny_model)
    await store.create(Tenant(id=OWN, name="a", created_at=0.0))
    await store.keep_schema(SCHEMA)
    await store.keep_schema(recorded(SHORT))
    namespaces, forms = Namespaces(b"s" * 32), AnswerForms()
    with closing(FairExecutor(1)) as pool:
        yield Admission(
            tokenizer, None, namespaces, lambda: SERVED, pool, Bounds(), forms, schemas=store
        )


@pytest.fixture
def prompts(admission: Admission) -> ModulePrompts:
    return admission.module_prompts


def recorded(spec: SchemaSpec) -> ModuleSchema:
    return msgspec.structs.replace(SCHEMA, id="modules_2", content=msgspec.Raw(spec.content))


def memory(schemas: int) -> BodyMemory:
    """Make a tenant's memory for `schemas` schemas that are read at the same time."""
    return BodyMemory(Bounds(max_tenant_body_bytes=schemas * MOST_SCHEMA_BYTES, body_wait_s=0.0))


async def test_a_schema_counts_as_a_part_of_the_body_until_it_is_released(
    prompts: ModulePrompts,
) -> None:
    held = memory(2)
    with held.lease(OWN) as body:
        await body.grow(7)
        assert await prompts.read(OWN, SCHEMA.id, body) == SCHEMA
        assert len(held) == body.size == 7 + SIZE
        with pytest.raises(NotFound):
            await prompts.read(OWN, "modules_3", body)
        assert len(held) == 7 + SIZE
    assert len(held) == 0


@pytest.mark.parametrize(("room", "refused"), [(4, 0), (1, 3)])
async def test_a_tenant_takes_no_more_schemas_into_memory_than_its_bodies_have_room(
    prompts: ModulePrompts, room: int, refused: int
) -> None:
    held = memory(room)
    with ExitStack() as stack:
        leases = [stack.enter_context(held.lease(OWN)) for _ in range(4)]
        found = await asyncio.gather(
            *(prompts.read(OWN, SCHEMA.id, lease) for lease in leases), return_exceptions=True
        )
        assert sum(isinstance(one, TooManyRequests) for one in found) == refused
        assert len(held) == (4 - refused) * SIZE


def chosen(prompts: ModulePrompts) -> ChosenModules:
    asked = prompts.context(CALLER, SERVED)
    modules = ModulesOption(SCHEMA.id, ("a", "c"))
    return at_once(prompts.chosen(recorded(SHORT), modules, asked, SERVED))


async def test_the_prompts_of_a_request_share_their_modules(prompts: ModulePrompts) -> None:
    def joined(modules: ChosenModules, text: str) -> JoinedPrompt:
        asked = prompts.context(CALLER, SERVED)
        return at_once(prompts.joined(modules, None, text, asked, CALLER, SERVED)).joined

    together = chosen(prompts)
    one, other = (joined(together, text) for text in ("one", "other"))
    assert one.modules is other.modules
    assert len(one.modules) == 3, "the head, a and c"
    assert other.token_ids.tolist() != one.token_ids.tolist()
    alone = joined(chosen(prompts), "other")
    assert alone.modules == other.modules
    assert alone.token_ids.tolist() == other.token_ids.tolist()
    assert alone.positions.tolist() == other.positions.tolist()
    assert alone.namespace == other.namespace


@pytest.mark.parametrize("with_modules", [True, False])
async def test_modules_count_in_whole_blocks_towards_the_longest_request(
    admission: Admission, with_modules: bool
) -> None:
    """Count modules in whole blocks: the cache holds that many blocks, however few tokens the
    modules have.
    """
    names = ("a", "b", "c")

    async def admitted(most: int) -> AdmittedRequest:
        wanted = GenerationRequest(
            request_id="r",
            prompts=("what",),
            choices=1,
            sampling=SamplingParams(max_tokens=4),
            max_tokens_may_shrink=False,
            text=TextRules(),
            modules=ModulesOption("modules_2", names) if with_modules else None,
        )
        caller = msgspec.structs.replace(CALLER, limits=Limits(max_request_tokens=most))
        with memory(1).lease(OWN) as body:
            return await admission.admit(wanted, caller, body=body)

    whole = await admitted(4000)
    (unbound,) = whole.generates
    held = sum(one.padded_tokens for one in unbound.modules) + len(unbound.token_ids) // 4
    assert (held > unbound.prompt_tokens) is with_modules
    padding = sum(-one.num_tokens % WELCOME.block_size for one in unbound.modules)
    assert whole.most_computed == unbound.prompt_tokens + padding, "what may be charged"
    assert (await admitted(held + 4)).generates == (unbound,)
    with pytest.raises(BadRequest, match=f"{held + 3} tokens for this tenant"):
        await admitted(held + 3)
