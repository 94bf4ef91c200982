"""The tenants' module schemas, and the preparation of prompts that name prompt modules.

A module schema is stored as the tenant sent it. Its modules are placed anew for each request. Their
tokens depend on the tokenizer, and their positions begin after the chat template's head.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import msgspec

from engine.link.messages import Welcome, pack_token_ids
from gateway.caller import Caller
from gateway.errors import BadRequest, NotFound
from gateway.http.body_memory import BodyLease
from gateway.processes.fair_executor import Steps
from gateway.prompts.answer_forms import AnswerForms
from gateway.prompts.generation_request import (
    GenerationRequest,
    ModulesUsed,
    Prompt,
)
from gateway.prompts.modules.joined import JoinedPrompt, ModulesBefore, modules_before
from gateway.prompts.modules.layout import Encode, PlacedSchema, placed_schema
from gateway.prompts.modules.schema import MOST_SCHEMA_BYTES, SchemaSpec, check_schema
from gateway.prompts.modules.selection import PARAM, ModulesOption, Selection, select
from gateway.prompts.pipeline.activation import used_adapter
from gateway.prompts.pipeline.explaining import as_seen
from gateway.prompts.pipeline.prepared import Prepared
from gateway.prompts.pipeline.prompt_tokens import PromptTokens
from gateway.prompts.pipeline.sampling_limits import param_of
from gateway.prompts.pipeline.tokenised import PromptContext, Tokenised
from gateway.sharing.namespaces import Namespaces
from gateway.state.records import ModuleSchema
from gateway.state.store import SchemaStore
from prefix_cache.namespace import NamespacePath

_SPEC = msgspec.json.Decoder(SchemaSpec)
_ID_DIGITS = 32


@dataclass(frozen=True, slots=True)
class StoredSchema:
    """A stored module schema, and the positions of its modules."""

    record: ModuleSchema
    spec: SchemaSpec
    placed: PlacedSchema


@dataclass(frozen=True, slots=True)
class ChosenModules:
    """The modules that a request names.

    All prompts of the request share the modules, since no limit counts the memory of copies.
    """

    record: ModuleSchema
    selection: Selection
    before: dict[bytes, ModulesBefore]  # prepared modules by the tokens at the prompt's beginning


class ModulePrompt(NamedTuple):
    """A prompt with prompt modules: the tokens after the modules (`found`), and both (`joined`)."""

    found: Tokenised
    joined: JoinedPrompt


@dataclass(frozen=True, slots=True)
class ModulePrompts:
    """The tenants' module schemas, checked and stored, and the prompts made of their modules.

    `clock` returns seconds since the epoch.
    """

    prompts: PromptTokens
    namespaces: Namespaces
    forms: AnswerForms
    store: SchemaStore
    clock: Callable[[], float]

    def placed(self, spec: SchemaSpec, caller: Caller, welcome: Welcome) -> Steps[StoredSchema]:
        """Place a new schema's modules; raise BadRequest if the engine cannot use the schema."""
        check_schema(spec)
        _check_served(welcome)
        asked = self.context(caller, welcome)
        placed = yield from placed_schema(spec, self._encode(asked), asked.most)
        if placed.length >= welcome.max_model_len:
            raise BadRequest(
                f"the modules have {placed.length} positions; the context has "
                f"{welcome.max_model_len}",
                code="context_length_exceeded",
                param="modules",
            )
        record = ModuleSchema(
            id=f"modules_{spec.digest.hex()[:_ID_DIGITS]}",
            tenant_id=caller.tenant_id,
            created_at=self.clock(),
            content=msgspec.Raw(spec.content),
        )
        return StoredSchema(record, spec, placed)

    def shown(self, record: ModuleSchema, asked: PromptContext) -> Steps[StoredSchema]:
        """Place a stored schema's modules."""
        spec = _SPEC.decode(record.content)
        placed = yield from placed_schema(spec, self._encode(asked), asked.most)
        return StoredSchema(record, spec, placed)

    def chosen(
        self, record: ModuleSchema, modules: ModulesOption, asked: PromptContext, welcome: Welcome
    ) -> Steps[ChosenModules]:
        """Select the modules that a request names; raise BadRequest for unknown modules."""
        _check_served(welcome)
        stored = yield from self.shown(record, asked)
        selection = yield from select(stored.placed, modules, self._encode(asked))
        return ChosenModules(record, selection, {})

    def context(self, caller: Caller, welcome: Welcome) -> PromptContext:
        """Return the context in which the modules of a tenant's schemas are placed."""
        namespace = self.namespaces.own(caller, None, welcome.fingerprint)
        return PromptContext.of(welcome, caller.tenant_id, namespace, room=0)

    def _encode(self, asked: PromptContext) -> Encode:
        return lambda text, most: self.prompts.alone(text, most, asked)

    async def read(self, tenant_id: str, schema_id: str, body: BodyLease) -> ModuleSchema:
        """Read a tenant's module schema, and count its bytes in `body`; raise NotFound.

        Raises TooManyRequests or Unavailable if there is no room for the bytes.
        """
        before = after = body.size
        await body.grow(before + MOST_SCHEMA_BYTES)
        try:
            record = await self.store.find_schema(tenant_id, schema_id)
            after += len(memoryview(record.content))
        finally:
            body.shrink(after)
        return record

    async def find(self, asked: ModulesOption, caller: Caller, body: BodyLease) -> ModuleSchema:
        """Read the schema that a request names, as `read` does."""
        try:
            return await self.read(caller.tenant_id, asked.schema, body)
        except NotFound as error:
            raise NotFound(error.message, code=error.code, param=f"{PARAM}.schema") from None

    def joined(
        self,
        chosen: ChosenModules,
        salt: str | None,
        prompt: Prompt,
        asked: PromptContext,
        caller: Caller,
        welcome: Welcome,
    ) -> Steps[ModulePrompt]:
        """Join the chosen modules and a prompt; raise BadRequest for a bad prompt."""
        special = isinstance(prompt, str)
        head, found = yield from self.prompts.divided(prompt, asked, add_special_tokens=special)
        if not len(found.token_ids):
            raise BadRequest("the prompt is empty", param=param_of(prompt))
        yield
        before = chosen.before.get(head.tobytes())
        if before is None:
            schema = chosen.record.id
            name = partial(self.namespaces.module, caller, salt, welcome.fingerprint, schema)
            before = modules_before(head, chosen.selection, name, welcome.block_size)
            if not before.modules:
                raise BadRequest("no text stands in the named modules", param=f"{PARAM}.use")
            chosen.before[head.tobytes()] = before
        return ModulePrompt(found, before.joined(found.token_ids))

    def prepared(
        self,
        wanted: GenerationRequest,
        prompt: Prompt,
        chosen: ChosenModules,
        asked: PromptContext,
        caller: Caller,
        welcome: Welcome,
    ) -> Steps[Prepared]:
        """Prepare a prompt of the chosen modules; raise BadRequest for unsupported options."""
        _check_fields(wanted)
        work = self.joined(chosen, wanted.salt, prompt, asked, caller, welcome)
        found, made = yield from work
        prediction = b""
        if wanted.prediction and wanted.drafts and wanted.has_output:
            ids = yield from self.prompts.continued(wanted.prediction, found, asked)
            prediction = pack_token_ids(ids)
        has_form = wanted.has_output
        grammar = self.forms.grammar(wanted.form, found.tail, found.prefill) if has_form else None
        path = NamespacePath.single(made.namespace)
        packed = pack_token_ids(made.token_ids)
        return Prepared(
            made.token_ids,
            path,
            made.block_keys(path, welcome.block_size),
            grammar,
            found.tail,
            found.prefill,
            None,
            as_seen(wanted, prompt, packed, caller, welcome, ()),
            None,
            (),
            prediction,
            0,
            used_adapter(wanted, made.token_ids),
            made,
            ModulesUsed(
                chosen.record.id,
                chosen.selection.used,
                chosen.selection.together,
                sum(one.own_tokens for one in made.modules),
            ),
        )


def _check_served(welcome: Welcome) -> None:
    if not welcome.has_modules:
        raise BadRequest(
            "this model has layers that do not read all keys, and serves no modules",
            code="modules_not_served",
            param=PARAM,
        )


def _check_fields(wanted: GenerationRequest) -> None:
    refused = {
        "`ratoon.explain`": wanted.explain is not None,
        "cache breakpoints": bool(wanted.marks),
        "log-probabilities of the prompt": wanted.sampling.prompt_logprobs is not None,
        "embeddings and scores": wanted.embeds or bool(wanted.candidates),
        "activated adapter": wanted.adapter is not None and bool(wanted.adapter.invocation),
    }
    both = next((name for name, is_asked in refused.items() if is_asked), None)
    if both is not None:
        raise BadRequest(f"a prompt of modules has no {both}", param=PARAM)
