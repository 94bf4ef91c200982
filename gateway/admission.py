"""Admission: from an `Ask` of a dialect to the `Generate` messages that the engine is sent.

Nothing behind this checks again: prompts are rendered, tokenised and within the context, token
ids are in the vocabulary, the namespace is the caller's, and blocks are hashed.

Knows: tokenizer, chat template, the engine's limits. Does not know: who shares with whom
(`namespaces.py`), wire formats (`openai/`) or what is generated (`generation.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import numpy as np

from engine.messages import Generate, Loads, Priority, SamplingParams, Welcome, pack_token_ids
from gateway.caller import Caller
from gateway.chat_template import ChatTemplate, Message, Scalar, Tool
from gateway.config import Bounds
from gateway.errors import BadRequest, Unavailable
from gateway.namespaces import Namespaces
from gateway.tokenizer import TokenIds, Tokenizer
from prefix_cache.hashing import block_keys
from prefix_cache.namespace import NamespacePath

T = TypeVar("T")

_INLINE_SIZE = 4096  # characters; a longer prompt is worth the hop to another thread
_IDS_PER_CHARACTER = 16  # token ids that take as long as one character to tokenise
_STARTING = "the engine is not ready yet"
_SEEDS = 2**64
_LOOKS, _LOOK_S = 15, 0.02  # wait up to 0.3 s for an engine that has just started


@dataclass(frozen=True, slots=True)
class Chat:
    """Messages, and tools if there are any, to be rendered by the model's template."""

    messages: tuple[Message, ...]
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    variables: Mapping[str, Scalar] | None = None
    tools: Sequence[Tool] | None = None


Prompt = Chat | str | TokenIds


@dataclass(frozen=True, slots=True)
class TextRules:
    """How tokens become the text that is shown."""

    stops: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special_tokens: bool = True


@dataclass(frozen=True, slots=True)
class Ask:
    """What a dialect has understood of one request."""

    request_id: str
    prompts: tuple[Prompt, ...]
    choices: int  # of each prompt
    sampling: SamplingParams
    max_tokens_may_shrink: bool  # the default was used: cut it to what the context leaves
    text: TextRules
    salt: str | None = None
    priority: Priority = "interactive"  # can lower the tenant's own priority, not raise it
    loads: Loads = "auto"


@dataclass(frozen=True, slots=True)
class Admitted:
    """What may run. Choice number i is `generates[i]`; the choices of a prompt are adjacent."""

    generates: tuple[Generate, ...]
    choices: int
    prompt_tokens: int  # each prompt once, however many choices it has
    text: TextRules


@dataclass(frozen=True, slots=True)
class _Prepared:
    token_ids: TokenIds
    path: NamespacePath
    keys: bytes


class Admission:
    """The one place where a request becomes `Generate` messages."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        namespaces: Namespaces,
        welcome: Callable[[], Welcome | None],
        pool: Executor,
        bounds: Bounds,
    ) -> None:
        self.tokenizer = tokenizer
        self._template = template
        self._namespaces = namespaces
        self._welcome = welcome
        self._pool = pool
        self._bounds = bounds

    async def engine(self) -> Welcome:
        """What the engine allows; Unavailable if none is connected within a moment.

        Workers connect one after the other: the one that answered /readyz may have an engine a
        moment before this one.
        """
        for _ in range(_LOOKS):
            if self._welcome() is not None:
                break
            await asyncio.sleep(_LOOK_S)
        return self.engine_limits()

    def engine_limits(self) -> Welcome:
        """What the connected engine allows; Unavailable while there is none."""
        welcome = self._welcome()
        if welcome is None:
            raise Unavailable(_STARTING, retry_after_s=2.0)
        return welcome

    async def admit(self, ask: Ask, caller: Caller, writer: str = "") -> Admitted:
        """Check, render, tokenise and hash `ask`; BadRequest or Unavailable when it cannot run.

        `writer` is the label under which it writes into the cache (`cache_writer`).
        """
        welcome = await self.engine()
        _check_vocabulary(ask.sampling, welcome.vocab_size)
        self._check_salt(ask.salt)

        def prepare() -> list[_Prepared]:
            return [self._prepare(prompt, caller, ask.salt, welcome) for prompt in ask.prompts]

        prepared = await self.off_the_loop(prepare, sum(map(_size, ask.prompts)))
        generates: list[Generate] = []
        for prompt in prepared:
            sampling = _within_context(ask, len(prompt.token_ids), welcome.max_model_len)
            for choice in range(ask.choices):
                generates.append(
                    Generate(
                        request_id=f"{ask.request_id}-{len(generates)}",
                        token_ids=pack_token_ids(prompt.token_ids),
                        namespaces=prompt.path.spans,
                        block_keys=prompt.keys,
                        flow=caller.tenant_id,
                        weight=caller.weight,
                        priority=_lower(caller.priority, ask.priority),
                        sampling=_of_choice(sampling, choice),
                        loads=ask.loads,
                        cache_quota=caller.cache.shares,
                        writer=writer,
                    )
                )
        prompt_tokens = sum(len(prompt.token_ids) for prompt in prepared)
        return Admitted(tuple(generates), ask.choices, prompt_tokens, ask.text)

    async def tokenize(self, prompt: Prompt, *, add_special_tokens: bool) -> TokenIds:
        """The token ids of a prompt, without admitting it; BadRequest when it is far too long."""
        welcome = self.engine_limits()

        def tokenise() -> TokenIds:
            return self._tokens(prompt, welcome, add_special_tokens=add_special_tokens)

        return await self.off_the_loop(tokenise, _size(prompt))

    async def detokenize(self, token_ids: list[int]) -> str:
        """The text of `token_ids`, special tokens included; BadRequest for one out of range."""
        _check_ids(np.array(token_ids, dtype=np.int32), self.engine_limits().vocab_size, "tokens")

        def decode() -> str:
            return self.tokenizer.decode(token_ids, skip_special_tokens=False)

        return await self.off_the_loop(decode, len(token_ids))

    async def off_the_loop(self, work: Callable[[], T], size: int) -> T:
        """What `work` gives, from another thread if it is as much as `size` characters are."""
        if size <= _INLINE_SIZE:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def _prepare(
        self, prompt: Prompt, caller: Caller, salt: str | None, welcome: Welcome
    ) -> _Prepared:
        token_ids = self._tokens(prompt, welcome, add_special_tokens=isinstance(prompt, str))
        if not len(token_ids):
            raise BadRequest("the prompt is empty", param=_param(prompt))
        size = welcome.block_size
        path = self._namespaces.path(caller, salt, token_ids, welcome.fingerprint, size)
        return _Prepared(token_ids, path, block_keys(path, token_ids, size))

    def _tokens(self, prompt: Prompt, welcome: Welcome, *, add_special_tokens: bool) -> TokenIds:
        if isinstance(prompt, np.ndarray):
            if len(prompt) >= welcome.max_model_len:
                raise too_long(len(prompt) + 1, welcome.max_model_len, "prompt")
            _check_ids(prompt, welcome.vocab_size, "prompt")
            return prompt
        text = self._render(prompt) if isinstance(prompt, Chat) else prompt
        if len(text) > welcome.max_model_len * self.tokenizer.longest_token:
            # Certainly over the context, so not worth the minutes that tokenising could take.
            raise too_long(None, welcome.max_model_len, _param(prompt))
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def _render(self, chat: Chat) -> str:
        if self._template is None:
            raise BadRequest(
                "the model has no chat template; use /v1/completions", param="messages"
            )
        return self._template.render(
            chat.messages,
            add_generation_prompt=chat.add_generation_prompt,
            continue_final_message=chat.continue_final_message,
            variables=chat.variables,
            tools=chat.tools,
        )

    def _check_salt(self, salt: str | None) -> None:
        if salt is not None and len(salt) > self._bounds.max_salt_chars:
            raise BadRequest(
                f"`cache_salt` has more than {self._bounds.max_salt_chars} characters",
                param="cache_salt",
            )


def _size(prompt: Prompt) -> int:
    """How much work it is to admit a prompt, in characters."""
    if isinstance(prompt, Chat):
        said = sum(len(message["content"]) for message in prompt.messages)
        return said + (len(msgspec.json.encode(prompt.tools)) if prompt.tools else 0)
    return len(prompt) if isinstance(prompt, str) else len(prompt) // _IDS_PER_CHARACTER


def _param(prompt: Prompt) -> str:
    return "messages" if isinstance(prompt, Chat) else "prompt"


def _check_ids(token_ids: TokenIds, vocab_size: int, param: str) -> None:
    if len(token_ids) and not 0 <= token_ids.min() <= token_ids.max() < vocab_size:
        raise _not_in(vocab_size, param)


def _check_vocabulary(sampling: SamplingParams, vocab_size: int) -> None:
    named = {"logit_bias": sampling.logit_bias, "stop_token_ids": sampling.stop_token_ids}
    for param, token_ids in named.items():
        if not all(0 <= token_id < vocab_size for token_id in token_ids):
            raise _not_in(vocab_size, param)


def _not_in(vocab_size: int, param: str) -> BadRequest:
    return BadRequest(f"a token id is not in the vocabulary of {vocab_size}", param=param)


def _within_context(ask: Ask, prompt_tokens: int, max_model_len: int) -> SamplingParams:
    """The request's sampling with a `max_tokens` that fits behind the prompt."""
    left = max_model_len - prompt_tokens
    sampling = ask.sampling
    if left < 1 or (sampling.max_tokens > left and not ask.max_tokens_may_shrink):
        wanted = prompt_tokens + (1 if ask.max_tokens_may_shrink else sampling.max_tokens)
        raise too_long(wanted, max_model_len, _param(ask.prompts[0]))
    if sampling.max_tokens <= left:
        return sampling
    return msgspec.structs.replace(
        sampling, max_tokens=left, min_tokens=min(sampling.min_tokens, left)
    )


def too_long(tokens: int | None, max_model_len: int, param: str) -> BadRequest:
    """The error for a request of so many tokens, if that is known, in this context."""
    wanted = "far more" if tokens is None else f"{tokens} tokens with the answer"
    return BadRequest(
        f"the model's context is {max_model_len} tokens, the request needs {wanted}",
        code="context_length_exceeded",
        param=param,
    )


def _lower(one: Priority, other: Priority) -> Priority:
    return "batch" if "batch" in (one, other) else "interactive"


def _of_choice(sampling: SamplingParams, choice: int) -> SamplingParams:
    """`sampling` with a seed of the choice's own, which is the same every time."""
    if sampling.seed is None or choice == 0:
        return sampling
    wrapped = (sampling.seed + choice + _SEEDS // 2) % _SEEDS - _SEEDS // 2
    return msgspec.structs.replace(sampling, seed=wrapped)
