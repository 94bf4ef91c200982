"""The forward pass of every decoder that is served.

    first stage       embedding -> layers -> residual ->
    later stages   -> residual -> layers -> ... -> final norm -> head     in the last

A decoder does not know which kernels compute (`Ops`), nor to which sequence a token belongs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.models.config import ModelConfig
from engine.models.forward.memories import LayerPlace, Memories, StepMemory
from engine.models.layers.mixer import KvConfig, LayerStep
from engine.models.parameters import Parameters
from engine.models.rank_group import RankGroup
from engine.models.shards import vocabulary_rows
from engine.models.stages import Pipe
from kernels.attention.batch_layout import BatchLayout
from kernels.collectives.peer_rows import PeerProduct
from kernels.ops import Ops


class PendingLayers(Protocol):
    """An interface to the KV of the layers from `first` on, which may load while a step runs."""

    first: int

    def wait(self) -> None:
        """Make later launches wait until these layers are loaded."""
        ...


class WeightPrefetch(Protocol):
    """An interface that prefetches layers' weights from host memory to the device.

    Layers are counted from the first layer of this stage.
    """

    def begin(self) -> None:
        """Start the first copies of a step."""
        ...

    def wait(self, index: int) -> None:
        """Make later launches wait for the weights of this layer, if they are being copied."""
        ...

    def computed(self, index: int) -> None:
        """Let later copies overwrite the layer's buffer, after the launched work on the layer."""
        ...


@dataclass(frozen=True, slots=True)
class Decoder:
    """A decoder on its device, and the location of each layer's KV or state.

    In a `group`, all ranks call `logits` with the same tokens and get the same logits. With several
    stages (`pipe`), each stage has some of the layers. All stages call `logits` with the same
    tokens, and only the last stage gets logits.
    """

    config: ModelConfig
    parameters: Parameters
    places: Mapping[int, LayerPlace]
    ops: Ops
    late: PendingLayers | None = None  # None: all KV has been loaded before a step is launched
    group: RankGroup | None = None
    pipe: Pipe | None = None
    prefetch: WeightPrefetch | None = None  # None: all weights are on the device
    num_slots: int = 0  # number of adapters' slots, including slot 0; 0 without adapters

    @property
    def has_logits(self) -> bool:
        """True if this rank computes the model's last layers."""
        return self.pipe is None or self.pipe.stage.is_last

    @property
    def whole_context(self) -> int:
        """The index in the pool of a layer that attends to all tokens, or 0 if there is none."""
        found = (
            self.places[layer.index].index
            for layer in self.parameters.layers
            if isinstance(layer.config.mixer, KvConfig) and layer.config.mixer.window is None
        )
        return next(found, 0)

    @property
    def num_positions(self) -> int:
        """The number of positions for which the decoder is built."""
        return min(len(one.cos_sin) for one in self.places.values() if one.cos_sin is not None)

    @property
    def has_draft_head(self) -> bool:
        """True if the model checkpoint's draft head is used."""
        return self.parameters.draft_head is not None

    @property
    def head(self) -> Tensor:
        """The rows of the output projection that this rank multiplies: (V, H), or fewer rows."""
        head = self.parameters.head
        if self.group is None:
            return head
        rows = vocabulary_rows(self.config.vocab_size, self.group.num_ranks)
        first = self.group.rank * rows if rows < len(head) else 0
        return head[first : first + rows]

    @torch.inference_mode()
    def logits(
        self,
        token_ids: Tensor,
        layout: BatchLayout,
        pool: Sequence[Tensor],
        outputs: Tensor,
        states: StepMemory = None,
        adapters: Tensor | None = None,
    ) -> Tensor:
        """Compute T tokens, write their KV to `pool`, and return the logits at `outputs`.

        `pool` has a tensor (blocks, 2, kv heads, block size, head dim) for each layer of this stage
        with attention. Recurrent layers, and layers with ring buffers, read and write `states`. A
        stage before the last returns no logits (0, V). After the last layer's attention or
        recurrence, only the tokens `outputs` are computed further.

        `token_ids` (T,) int64. `outputs` (S,) int64 are indices of tokens. `adapters` (T,) int32
        are the slots of the tokens' adapters, if any. Returns (S, V) in the model's dtype. The
        caller may overwrite the result. The call does not wait for the device.
        """
        return self.logits_of(self.hidden(token_ids, layout, pool, outputs, states, adapters))

    @torch.inference_mode()
    def hidden(
        self,
        token_ids: Tensor,
        layout: BatchLayout,
        pool: Sequence[Tensor],
        outputs: Tensor | None,
        states: StepMemory = None,
        adapters: Tensor | None = None,
    ) -> Tensor:
        """Compute T tokens like `logits`, and return their hidden states (S, H).

        The hidden states are taken after the final norm. Without `outputs`, return those of all
        tokens.
        """
        memories = Memories(self.places, pool, states)
        computed = self._layers(token_ids, layout, memories, outputs, adapters)
        if computed is None:
            return self.parameters.embedding.new_empty((0, self.config.hidden_size))
        return self._normed(*computed)

    @torch.inference_mode()
    def logits_of(self, hidden: Tensor) -> Tensor:
        """Return the logits (S, V) of hidden states (S, H).

        A stage without a head returns (0, V).
        """
        if not len(hidden):
            return self.parameters.head.new_empty((0, self.config.vocab_size))
        logits = self._of_all_ranks(self.ops.linear(hidden, self.head, None))
        if (divisor := self.config.logits_divisor) is not None:
            logits.div_(divisor)
        cap = self.config.logits_softcap
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)

    def _normed(self, hidden: Tensor | PeerProduct | None, residual: Tensor) -> Tensor:
        if hidden is None:
            return self.parameters.final_norm.norm(self.ops, residual)
        normed, _ = self.parameters.final_norm.add(self.ops, hidden, residual)
        assert isinstance(normed, Tensor), "the head is plain in every format"
        return normed

    @torch.inference_mode()
    def draft_hidden(
        self,
        hidden: Tensor,
        next_ids: Tensor,
        layout: BatchLayout,
        pool: Sequence[Tensor],
        outputs: Tensor,
    ) -> Tensor:
        """Compute the draft head's hidden states (S, H) of the tokens `outputs` (S,).

        `hidden` (T, H) are the decoder's hidden states of all tokens of a step. `next_ids` (T,)
        int64 are the next tokens of these tokens. The logits (`logits_of`) of the result predict
        the tokens after `next_ids`. The KV of the head's layer is written to `pool`. Raises
        ValueError without a draft head.
        """
        head = self.parameters.draft_head
        if head is None:
            raise ValueError("the model has no head to draft with")
        self._await(head.layer.index, self.places[head.layer.index])
        memory = Memories(self.places, pool, None).of(head.layer.index)
        embedded = self._embedded(next_ids)
        return head.hidden(LayerStep(self.ops, layout, memory), embedded, hidden, outputs)

    def _of_all_ranks(self, logits: Tensor) -> Tensor:
        if self.group is None or logits.shape[1] == self.config.vocab_size:
            return logits
        return self.group.gather_columns(logits)

    def _layers(
        self,
        token_ids: Tensor,
        layout: BatchLayout,
        memories: Memories,
        outputs: Tensor | None,
        adapters: Tensor | None,
    ) -> tuple[Tensor | PeerProduct | None, Tensor] | None:
        """Compute the last layer's output and residual, both (S, H), at the tokens `outputs`.

        Without `outputs`, return both for all tokens. Return None if `outputs` is empty or this is
        not the last stage. All KV is written in any case.
        """
        ops, layers = self._ops_of(adapters), self.parameters.layers
        hidden: Tensor | PeerProduct | None = None
        first, last = layers[0].index, layers[-1]
        if self.prefetch is not None:
            self.prefetch.begin()
        residual = self._entering(token_ids)
        if (own := self.parameters.layer_inputs) is not None:
            memories = replace(memories, own_inputs=own.of(ops, token_ids, residual))
        for layer in layers:
            index = layer.index - first
            self._await(index, self.places[layer.index])
            rows = memories.layout_of(layer.index, layout)
            step = LayerStep(ops, rows, memories.of(layer.index))
            entered, residual = layer.enter(step, hidden, residual)
            hidden = None  # frees the tensor before the layer is finished
            if layer is not last or not self.has_logits:
                hidden, residual = layer.finish(step, entered, residual, None)
            elif outputs is None or outputs.shape[0]:
                if adapters is not None and outputs is not None:
                    step = step._replace(ops=self._ops_of(adapters.index_select(0, outputs)))
                return layer.finish(step, entered, residual, outputs)
            del entered
            if self.prefetch is not None:
                self.prefetch.computed(index)
        if not self.has_logits:
            self._pass_on(hidden, residual)
        return None

    def _ops_of(self, slots: Tensor | None) -> Ops:
        return self.ops if slots is None else self.ops.of_tokens(slots, self.num_slots)

    def _await(self, index: int, place: LayerPlace) -> None:
        if self.prefetch is not None:
            self.prefetch.wait(index)
        in_pool = place.cos_sin is not None and not place.in_ring
        if self.late is not None and in_pool and place.index == self.late.first:
            self.late.wait()

    def _entering(self, token_ids: Tensor) -> Tensor:
        if self.pipe is None or self.pipe.stage.is_first:
            return self._embedded(token_ids)
        embedding = self.parameters.embedding
        return self.pipe.receive(embedding.new_empty((len(token_ids), embedding.shape[1])))

    def _pass_on(self, hidden: Tensor | PeerProduct | None, residual: Tensor) -> None:
        """Add `hidden` to the residual and send the sum to the next stage.

        The sum is computed by a norm, so that it has the same bits as in a model without stages.
        """
        assert self.pipe is not None, "a stage before the last has one after it"
        if hidden is not None:
            _, residual = self.parameters.final_norm.add(self.ops, hidden, residual)
        self.pipe.send(residual)

    def _embedded(self, token_ids: Tensor) -> Tensor:
        embedded = F.embedding(token_ids, self.parameters.embedding)
        scale = self.config.embedding_scale
        if scale is None:
            return embedded
        if self.config.rounds_embedding_scale:
            scale = torch.tensor(scale, dtype=embedded.dtype).item()
        return embedded.mul_(scale)
