"""The admission of a dialect's `GenerationRequest`, which becomes `Generate` messages.

Later stages do not check again. Prompts are rendered, tokenised and within the context. Token ids
are in the vocabulary, the namespace is the caller's, and blocks are hashed.

Elsewhere: how prompts are prepared (`preparation.py`), and how messages are made (`prepared.py`).
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from engine.link.messages import Welcome
from gateway.caller import Caller
from gateway.config import Bounds
from gateway.diagnosis.misses import LastMisses
from gateway.diagnosis.seen import SeenPrompts
from gateway.errors import BadRequest, NotFound, Unavailable
from gateway.http.body_memory import BodyLease
from gateway.processes.fair_executor import LARGE, FairExecutor, Steps
from gateway.prompts.answer_forms import AnswerForms
from gateway.prompts.generation_request import (
    AdmittedRequest,
    GenerationRequest,
    Origin,
    Prompt,
    TextRules,
    size_of,
)
from gateway.prompts.modules.selection import ModulesOption
from gateway.prompts.pipeline.activation import with_adapter
from gateway.prompts.pipeline.canonical import canonical_prompt
from gateway.prompts.pipeline.explaining import Explaining
from gateway.prompts.pipeline.module_prompts import ModulePrompts
from gateway.prompts.pipeline.preparation import Preparation
from gateway.prompts.pipeline.prepared import generates_of
from gateway.prompts.pipeline.prompt_tokens import PromptTokens
from gateway.prompts.pipeline.sampling_limits import check_vocabulary, least_room
from gateway.prompts.pipeline.tokenised import PromptContext
from gateway.prompts.templates.chat_template import ChatTemplate
from gateway.prompts.templates.verdicts import Verdicts
from gateway.prompts.tokens.marker_decoder import MarkerDecoder
from gateway.prompts.tokens.text_memory import TextMemory
from gateway.prompts.tokens.tokenizer import TokenIds, Tokenizer
from gateway.prompts.verbatim_turns.verbatim import VerbatimTurns
from gateway.sharing.namespaces import Namespaces
from gateway.state.records import ModuleSchema
from gateway.state.store import SchemaStore
from gateway.turn_formats.pieces import Piece

T = TypeVar("T")

# number of looks, and seconds between them, for an engine that has just started
_LOOKS, _LOOK_S = 15, 0.02


class Admission:
    """The admission of requests, the only place that makes `Generate` messages."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        namespaces: Namespaces,
        welcome: Callable[[], Welcome | None],
        pool: FairExecutor,
        bounds: Bounds,
        forms: AnswerForms,
        turns: VerbatimTurns | None = None,
        seen: SeenPrompts | None = None,
        texts: TextMemory | None = None,
        misses: LastMisses | None = None,
        verdicts: Verdicts | None = None,
        schemas: SchemaStore | None = None,
    ) -> None:
        """Admit requests. An optional argument that is None switches its function off.

        Without `turns` no answer is remembered, and without `seen` no prompt is remembered. Prompts
        are also compared with earlier prompts for tenants that look at their `misses`.
        """
        self.tokenizer = tokenizer
        self._turns = turns
        self._explaining = Explaining(seen, tokenizer, misses)
        self._prompts = PromptTokens(tokenizer, template, turns, texts, verdicts)
        self._forms = forms
        markers = tokenizer.special_ids(forms.markers)
        self._decoder = MarkerDecoder(tokenizer, markers) if markers else tokenizer
        self._namespaces = namespaces
        self._modules = (
            None
            if schemas is None
            else ModulePrompts(self._prompts, namespaces, forms, schemas, time.time)
        )
        self._preparation = Preparation(
            self._prompts, tokenizer, forms, namespaces, self._explaining, self._modules
        )
        self._welcome = welcome
        self._pool = pool
        self._bounds = bounds

    @property
    def module_prompts(self) -> ModulePrompts:
        """The tenants' module schemas. Raises NotFound if this gateway stores none."""
        if self._modules is None:
            raise NotFound("this gateway stores no schemas of modules")
        return self._modules

    async def engine(self) -> Welcome:
        """Return the engine's limits; raise Unavailable if no engine connects within a moment.

        Workers connect one after the other. This worker may connect a moment after the worker that
        answered /readyz.
        """
        for _ in range(_LOOKS):
            welcome = self._welcome()
            if welcome is not None:
                return welcome
            await asyncio.sleep(_LOOK_S)
        raise Unavailable("the engine is not ready yet", retry_after_s=2.0)

    async def admit(
        self,
        wanted: GenerationRequest,
        caller: Caller,
        writer: str = "",
        body: BodyLease | None = None,
    ) -> AdmittedRequest:
        """Check, render, tokenise and hash the prompts of the request `wanted`.

        Raises BadRequest or Unavailable if the request cannot run. `writer` labels the blocks that
        the request writes into the cache (`usage.Writer`). `body` counts the memory of the module
        schema that the request names, if any.
        """
        welcome = with_adapter(await self.engine(), wanted.adapter)
        schema = await self._schema(wanted.modules, caller, body)
        size = wanted.size + (0 if schema is None else len(memoryview(schema.content)))
        work = self._admitted(wanted, caller, welcome, writer, schema)
        return await self.off_the_loop(caller, work, size)

    def _admitted(
        self,
        wanted: GenerationRequest,
        caller: Caller,
        welcome: Welcome,
        writer: str,
        schema: ModuleSchema | None,
    ) -> Steps[AdmittedRequest]:
        self._check(wanted, welcome)
        asked = self._asked(caller, wanted.salt, welcome, room=least_room(wanted))
        prepared = yield from self._preparation.prepare(wanted, asked, caller, welcome, schema)
        generates = generates_of(wanted, prepared, caller, welcome.max_model_len, writer)
        computed = 1 if generates[0].use_cache else wanted.choices
        prompt_tokens = computed * sum(prompt.num_tokens for prompt in prepared)
        tail, prefill = prepared[0].tail, prepared[0].prefill
        parser = None if tail is None else self._forms.parser(wanted.form, tail, prefill)
        is_turn = wanted.has_output and not wanted.text.include_stop
        origin = prepared[0].origin if is_turn else None
        return AdmittedRequest(
            generates,
            wanted.choices,
            prompt_tokens,
            self._with_hidden_stops(wanted.text),
            parser,
            origin,
            self._forms.grammar_param(wanted.form),
            prepared[0].seen if len(prepared) == 1 and schema is None else None,
            prepared[0].comparison,
            wanted.explain is not None,
            wanted.max_tokens_may_shrink,
            wanted.at_once,
            prepared[0].modules,
        )

    def _check(self, wanted: GenerationRequest, welcome: Welcome) -> None:
        check_vocabulary(wanted.sampling, welcome.vocab_size)
        if not (wanted.embeds or welcome.has_head):
            raise BadRequest(
                "the model embeds and generates nothing: use /v1/embeddings",
                code="model_only_embeds",
                param="model",
            )
        self._check_salt(wanted.salt)
        self._forms.check(wanted.form)
        if wanted.explain is not None and len(wanted.prompts) > 1:
            raise BadRequest("only one prompt at a time can be explained", param="ratoon.explain")

    def _with_hidden_stops(self, rules: TextRules) -> TextRules:
        if not rules.stops:
            return rules
        return replace(rules, hidden_stops=self.tokenizer.special_ids(rules.stops))

    def computed(self, admitted: AdmittedRequest) -> None:
        """Remember a prompt that the engine has computed, for comparison with later prompts."""
        self._explaining.remember(admitted)

    def remember(self, origin: Origin, pieces: Sequence[Piece], token_ids: Sequence[int]) -> None:
        """Remember a complete answer, for requests that continue its chat."""
        if self._turns is not None:
            self._turns.remember(origin, pieces, token_ids)

    def decoder(self, admitted: AdmittedRequest) -> Tokenizer | MarkerDecoder:
        """Choose the decoder of an answer's tokens. A parser must see the format's markers."""
        return self.tokenizer if admitted.parser is None else self._decoder

    async def tokenize(
        self,
        prompt: Prompt,
        caller: Caller,
        show: Callable[[TokenIds], Steps[T]],
        *,
        add_special_tokens: bool,
        salt: str | None = None,
    ) -> T:
        """Return the result of `show` for a prompt's token ids.

        Prompts of up to twice the context are shown, so that clients see by how much a prompt is
        too long. Raises BadRequest for a longer prompt.
        """

        def work(sent: Prompt, asked: PromptContext, welcome: Welcome) -> Steps[T]:
            del welcome
            special = add_special_tokens
            found = yield from self._prompts.tokenised(sent, asked, add_special_tokens=special)
            yield size_of(found.token_ids)
            return (yield from show(found.token_ids))

        return await self._shown(prompt, caller, salt, work, size_of(prompt))

    async def count(
        self,
        prompt: Prompt,
        caller: Caller,
        modules: ModulesOption | None = None,
        salt: str | None = None,
        body: BodyLease | None = None,
    ) -> int:
        """Count a chat's tokens, including its modules' tokens; raise the errors of `tokenize`.

        `body` counts the memory of the module schema, if there are modules.
        """
        schema = await self._schema(modules, caller, body)

        def work(sent: Prompt, asked: PromptContext, welcome: Welcome) -> Steps[int]:
            if modules is None or schema is None:
                found = yield from self._prompts.tokenised(sent, asked, add_special_tokens=False)
                return len(found.token_ids)
            chosen = yield from self.module_prompts.chosen(schema, modules, asked, welcome)
            made = yield from self.module_prompts.joined(chosen, salt, sent, asked, caller, welcome)
            return made.joined.num_tokens

        size = size_of(prompt) + (0 if schema is None else len(memoryview(schema.content)))
        return await self._shown(prompt, caller, salt, work, size)

    async def _shown(
        self,
        prompt: Prompt,
        caller: Caller,
        salt: str | None,
        work: Callable[[Prompt, PromptContext, Welcome], Steps[T]],
        size: int,
    ) -> T:
        """Do `work` on a prompt of up to twice the context, in the form that the engine gets."""
        self._check_salt(salt)
        welcome = await self.engine()
        context = welcome.max_model_len
        asked = replace(self._asked(caller, salt, welcome, room=context + 1), most=2 * context)

        def done() -> Steps[T]:
            sent = canonical_prompt(prompt) if caller.canonical_prompts else prompt
            return (yield from work(sent, asked, welcome))

        return await self.off_the_loop(caller, done(), size)

    async def _schema(
        self, modules: ModulesOption | None, caller: Caller, body: BodyLease | None
    ) -> ModuleSchema | None:
        if modules is None:
            return None
        assert body is not None, "a schema takes memory"
        return await self.module_prompts.find(modules, caller, body)

    async def off_the_loop(self, caller: Caller, work: Steps[T], size: int) -> T:
        """Run `work`. Large work runs in another thread, to keep the event loop free."""
        return await self._pool.run(caller.tenant_id, work, size)

    async def spell(self, caller: Caller, work: Steps[T], size: int) -> T:
        """Encode an answer, and never refuse this work, since the answer is already charged.

        Large answers are not encoded by the low-priority threads of large work. The steps are short
        and hold the interpreter's lock, and on a busy machine such a thread would keep the lock for
        long.
        """
        size = min(size, LARGE)
        return await self._pool.run(caller.tenant_id, work, size, may_refuse=False)

    def _asked(
        self, caller: Caller, salt: str | None, welcome: Welcome, room: int
    ) -> PromptContext:
        namespace = self._namespaces.own(caller, salt, welcome.fingerprint)
        return PromptContext.of(welcome, caller.tenant_id, namespace, room)

    def _check_salt(self, salt: str | None) -> None:
        if salt is not None and len(salt) > self._bounds.max_salt_chars:
            raise BadRequest(
                f"`cache_salt` has more than {self._bounds.max_salt_chars} characters",
                param="cache_salt",
            )
