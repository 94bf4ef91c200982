"""A Llama of transformers that answers from some of a prefix's keys, chosen by layer and KV head.

    prefix, computed once | question 1 | question 2 | ...     questions do not see each other

Positions stay what they are, and what is left out is masked: a cache of only the kept keys, which
are stored with their rope, gives the same outputs.

Knows: transformers, the loader of GGUF files. Does not know: how tokens are chosen.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from benchmarks.pruning.documents import Asked, Chat
from cli.gguf.description import describe
from engine.models.gguf.tensors import GgufFile
from handbook.training.checkpoint import SHIPPED, load_checkpoint
from handbook.training.tokenizer import load_tokenizer

ByLayer: TypeAlias = list[Tensor]
"""For each layer, of (KV heads, continuations, tokens); 1 for any number of continuations."""

Reduce: TypeAlias = Callable[[Tensor], Tensor]
"""Reduce attention (KV heads, query heads of each, queries, tokens) to (KV heads, tokens)."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A judged greedy answer, and the log-likelihood of the right one."""

    is_right: bool
    log_likelihood: float


class MaskedModel:
    """A model, and the KV of one prefix."""

    def __init__(self, model: Any, chat: Chat) -> None:
        ALL_ATTENTION_FUNCTIONS.register("masked", self._attend)
        model.config._attn_implementation = "masked"
        self.chat = chat
        self.num_tokens = 0
        self._model = model
        self._cache = DynamicCache()
        self._groups = torch.empty(0)  # a new token's continuation
        self._kept: ByLayer | None = None
        self._reduce: Reduce | None = None
        self._attended: ByLayer = []

    def read(self, prefix: list[int]) -> None:
        """Compute all KV of a prefix, in place of the last one."""
        self._cache, self.num_tokens = DynamicCache(), 0
        self._compute([prefix])
        self.num_tokens = len(prefix)

    def prefix_keys(self) -> ByLayer:
        """Return each layer's keys (KV heads, tokens, size of a head)."""
        return [layer.keys[0, :, : self.num_tokens].float() for layer in self._cache.layers]

    def attended(self, continuations: Sequence[list[int]], reduce: Reduce) -> ByLayer:
        """Compute continuations; return how much each attends to the prefix's tokens."""
        self._reduce, self._attended = reduce, []
        self._compute(continuations)
        self._reduce = None
        return self._attended

    def answers(self, asked: Sequence[Asked], kept: ByLayer | None = None) -> list[Answer]:
        """Answer questions from the kept tokens (of bool), or from all."""
        self._kept = kept
        hidden = self._compute([one.question + one.answer[:-1] for one in asked])
        self._kept = None
        return [
            self._judged(one.answer, part[-len(one.answer) :])
            for one, part in zip(asked, hidden, strict=True)
        ]

    def _judged(self, answer: list[int], hidden: Tensor) -> Answer:
        with torch.no_grad():
            logits = self._model.lm_head(hidden).float()
        right = torch.tensor(answer)
        likely = logits.log_softmax(-1).gather(1, right[:, None]).sum()
        return Answer(bool((logits.argmax(-1) == right).all()), float(likely))

    @torch.no_grad()
    def _compute(self, continuations: Sequence[list[int]]) -> Sequence[Tensor]:
        """Return the hidden states of each continuation; keep only a first one's KV."""
        lengths = [len(one) for one in continuations]
        first = self.num_tokens
        places = torch.cat([torch.arange(first, first + length) for length in lengths])
        self._groups = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
        states = self._model.model(
            input_ids=torch.tensor([[token for one in continuations for token in one]]),
            position_ids=places[None],
            past_key_values=self._cache,
            use_cache=True,
        ).last_hidden_state[0]
        for layer in self._cache.layers if first else ():
            layer.keys, layer.values = layer.keys[:, :, :first], layer.values[:, :, :first]
        parts: Sequence[Tensor] = states.split(lengths)
        return parts

    def _attend(
        self, module: Any, q: Tensor, k: Tensor, v: Tensor, *_: Any, scaling: float, **__: Any
    ) -> tuple[Tensor, None]:
        """Attend as `transformers` asks; q (1, query heads, new tokens, size), k of all tokens."""
        share = q.shape[1] // k.shape[1]
        mask = None
        if self.num_tokens:
            mask = self._mask(module.layer_idx, k.shape[1]).repeat_interleave(share, 0)
        if self._reduce is not None and mask is not None:
            scores = q[0].float() @ k[0].repeat_interleave(share, 0).mT.float() * scaling
            shares = scores.masked_fill(~mask, -torch.inf).softmax(-1)[..., : self.num_tokens]
            by_head = shares.reshape(k.shape[1], share, *shares.shape[1:])
            groups = torch.split(by_head, self._groups.bincount().tolist(), 2)
            self._attended.append(torch.stack([self._reduce(one) for one in groups], 1))
        k, v = k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
        out = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, scale=scaling)
        return out.transpose(1, 2).contiguous(), None

    def _mask(self, layer: int, kv_heads: int) -> Tensor:
        """Return the keys that new tokens attend to (KV heads, new tokens, tokens)."""
        own = (self._groups[:, None] == self._groups[None]).tril()
        before = torch.ones(kv_heads, 1, self.num_tokens, dtype=torch.bool)
        if self._kept is not None:
            before = self._kept[layer]
        count = int(self._groups[-1]) + 1
        before = before.expand(-1, count, -1)[:, self._groups]
        return torch.cat((before, own.expand(kv_heads, -1, -1)), 2)


def load_model(path: Path | None) -> MaskedModel:
    """Load a GGUF file of a Llama that knows ChatML; without a path, the embedded model."""
    if path is None:
        chat = Chat(load_tokenizer(SHIPPED), embedded=True)
        return MaskedModel(load_checkpoint(SHIPPED).eval(), chat)
    with tempfile.TemporaryDirectory(prefix="ratoon-") as scratch:
        described = describe(path, Path(scratch))
        config = AutoConfig.from_pretrained(described)
        tokenizer = Tokenizer.from_file(str(described / "tokenizer.json"))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    with GgufFile(path, torch.device("cpu")) as file:
        names = [name for name in model.state_dict() if name != "lm_head.weight"]
        model.load_state_dict({name: file.get_tensor(name) for name in names}, strict=False)
    model.tie_weights()
    return MaskedModel(model, Chat(tokenizer, embedded=False))
