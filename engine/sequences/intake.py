"""The intake: it makes a `Sequence` from a `Generate`, or raises a typed error.

The gateway has already validated requests. The intake checks only values that would break the
engine or its fairness. For example, a token id outside the vocabulary would read other memory on a
GPU, and a NaN weight would stop the queue.

Elsewhere: the running requests (`core.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from engine.errors import InvalidRequest, PromptTooLong
from engine.link.codec import DecodeError, unpack_token_ids
from engine.link.messages import Generate, Partition
from engine.sequences.modules import SequenceModules, modules_of
from engine.sequences.request_checks import (
    WHOLE,
    check_fields,
    check_marks,
    check_places,
    check_sampling,
    check_scoring,
)
from engine.sequences.sequence import Sequence
from engine.sequences.token_constraint import (
    ConstraintOf,
    ForgetGrammars,
    nothing_kept,
    unconstrained,
)
from prefix_cache.eviction.shares import PUBLISHED, Quota
from prefix_cache.hashing import KEY_BYTES, TokenIds
from prefix_cache.namespace import Namespace, NamespacePath

TOKEN_BYTES = 4
MAX_CANDIDATES = 256


@dataclass(frozen=True, slots=True)
class Intake:
    """The validation of new requests. Limits are in tokens.

    `fits` returns whether an empty pool would have enough blocks for a request. `constraint_of`
    makes the constraint on an answer's tokens. `forget_grammars` drops the compiled grammars of a
    flow.
    """

    vocab_size: int
    block_size: int
    max_model_len: int
    fits: Callable[[int], bool]
    constraint_of: ConstraintOf = unconstrained
    forget_grammars: ForgetGrammars = nothing_kept
    has_modules: bool = False

    def accept(self, client: bytes, request: Generate, now: float) -> Sequence:
        """Return the sequence of a valid request. Raises InvalidRequest or PromptTooLong."""
        prompt = self._prompt(request.token_ids)
        # The step that ends the prompt always samples a token.
        sampled = max(request.sampling.max_tokens, 1)
        check_fields(request)
        check_sampling(request.sampling, self.vocab_size)
        check_scoring(request, len(prompt))
        self._check_candidates(request.candidates)
        modules = self._modules(request)
        self._check_room(modules, len(prompt), sampled)
        self._check_keys(request, len(prompt))
        check_marks(request.marks, len(prompt))
        check_places(request, len(prompt))
        tokens = np.zeros(len(prompt) + sampled, np.int32)
        tokens[: len(prompt)] = prompt
        positions = self._positions(request.positions, len(prompt), sampled)
        return Sequence(
            request_id=request.request_id,
            client=client,
            flow=request.flow,
            weight=request.weight,
            writer=request.writer,
            priority=request.priority,
            target_itl_s=request.target_itl_s,
            path=path_of(
                request.namespaces, 0 if request.adapter is None else request.adapter.start
            ),
            block_keys=request.block_keys,
            sampling=request.sampling,
            prompt_len=len(prompt),
            arrived=now,
            tokens=tokens,
            num_tokens=len(prompt),
            use_cache=request.use_cache,
            is_counted=request.is_counted,
            loads=request.loads,
            marks=request.marks,
            question=request.question,
            source=request.source if request.use_cache else None,
            fetches_only=request.source is not None and request.source.only,
            constraint=self.constraint_of(request.sampling, request.flow),
            embeds=request.embeds,
            candidates=request.candidates,
            drafts=request.drafts,
            prediction=self._prediction(request.prediction),
            adapter=request.adapter,
            modules=modules,
            positions=positions,
        )

    def _check_room(self, modules: SequenceModules | None, prompt_len: int, sampled: int) -> None:
        before = 0 if modules is None else modules.num_tokens
        self._check_length(before + prompt_len, sampled)
        if modules is not None and not self.fits(modules.padded_tokens + prompt_len + sampled):
            raise PromptTooLong("the modules are more than the cache's pool holds beside the rest")

    def _modules(self, request: Generate) -> SequenceModules | None:
        if not self.has_modules and (request.modules or request.positions):
            raise InvalidRequest("prompts for this model are not made of modules")
        modules = modules_of(request, self.block_size, self.vocab_size)
        if modules is None:
            return None
        if not request.use_cache or request.marks or request.source is not None:
            raise InvalidRequest("a prompt with modules uses the cache, without marks or fetches")
        if not modules.copied_tokens < len(request.token_ids) // TOKEN_BYTES:
            raise InvalidRequest("a prompt with modules has a token of its own")
        positions = b"".join(one.positions for one in request.modules)
        self._check_positions(unpack_token_ids(positions), 1)
        return modules

    def _positions(self, data: bytes, prompt_len: int, sampled: int) -> TokenIds | None:
        """Return the positions of the tokens of a prompt and its answer.

        Return None if the positions are 0, 1, 2, ...
        """
        if not data:
            return None
        positions = np.frombuffer(data, "<i4") if len(data) == TOKEN_BYTES * prompt_len else None
        if positions is None:
            raise InvalidRequest("the positions do not fit the prompt")
        self._check_positions(positions, sampled)
        after = positions[-1] + np.arange(1, sampled + 1, dtype=np.int32)
        return np.concatenate([positions, after]).astype(np.int32)

    def _check_positions(self, positions: TokenIds, sampled: int) -> None:
        if positions.min() < 0 or int(positions.max()) + sampled >= self.max_model_len:
            raise PromptTooLong(f"a position is not within the context of {self.max_model_len}")

    def _prompt(self, data: bytes) -> TokenIds:
        try:
            prompt = unpack_token_ids(data)
        except DecodeError as error:
            raise InvalidRequest(str(error)) from error
        if not len(prompt):
            raise InvalidRequest("the prompt has no tokens")
        if prompt.min() < 0 or prompt.max() >= self.vocab_size:
            raise InvalidRequest("the prompt has a token id outside of the vocabulary")
        return prompt

    def _prediction(self, data: bytes) -> TokenIds | None:
        if not data:
            return None
        prediction = self._prompt(data)
        if len(prediction) > self.max_model_len:
            raise InvalidRequest("the prediction is longer than the context")
        return prediction

    def _check_length(self, prompt_len: int, max_tokens: int) -> None:
        total = prompt_len + max_tokens
        if total > self.max_model_len:
            raise PromptTooLong(
                f"{prompt_len} prompt tokens and {max_tokens} to generate are more than "
                f"the context of {self.max_model_len}"
            )
        if not self.fits(total):
            raise PromptTooLong(f"{total} tokens are more than the cache's pool holds")

    def _check_keys(self, request: Generate, prompt_len: int) -> None:
        expected = prompt_len // self.block_size * KEY_BYTES
        if request.use_cache and len(request.block_keys) != expected:
            raise InvalidRequest("the block keys do not fit the prompt")

    def _check_candidates(self, data: bytes) -> None:
        if not data:
            return
        candidates = self._prompt(data)
        if len(candidates) > MAX_CANDIDATES:
            raise InvalidRequest("too many candidates")


def partition_of(message: Partition) -> dict[str, Quota]:
    """Return the quota of each flow in a partition. Raises InvalidRequest."""
    try:
        return {
            flow: Quota(quota.floor, quota.ceiling, quota.weight)
            for flow, quota in message.flows.items()
        }
    except ValueError as error:
        raise InvalidRequest(str(error)) from error


def quota_of(request: Generate) -> Quota | None:
    """Return the cache quota of an accepted request's flow, or None without a quota."""
    if request.flow in ("", PUBLISHED):
        return None
    return Quota(*(request.cache_quota or WHOLE), weight=request.weight)


def path_of(namespaces: tuple[tuple[int, bytes], ...], adapter_start: int = 0) -> NamespacePath:
    """Convert a request's namespaces to a path of the cache. Raises InvalidRequest."""
    spans = tuple((start, Namespace(name)) for start, name in namespaces)
    try:
        return NamespacePath(spans, adapter_start or None)
    except ValueError as error:
        raise InvalidRequest(str(error)) from error
