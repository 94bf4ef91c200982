"""A head that a checkpoint brings to draft with: multi-token prediction (MTP), of one layer.

    embedding of the next token -> norm -\\
    hidden state of a token     -> norm -- joined -> projection -> layer -> norm -> output head

The hidden state is the decoder's, after its final norm. What the head's logits say of a token is
the one after the next. Its layer has attention, and KV of its own beside that of the decoder's
layers, written at the position of the hidden state. The embedding and the output head are the
decoder's.

Published files may have the head's matrices in the model's weight format, or plain beside it; so
what the files have is asked for (`stored_head`).

Torch is imported for types alone, as in `modules`. Source: DeepSeek-V3 (arXiv 2412.19437), 2.2, in
the form of Qwen3-Next and Qwen3.5. Knows: names in checkpoints. Does not know: config.json.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from engine.models.layers.layer import DecoderLayer, LayerConfig
from engine.models.layers.norms import RmsNorm, RmsNormConfig
from engine.models.modules import Allocator, Linear, LinearConfig
from engine.models.weight_formats.plain import PLAIN

if TYPE_CHECKING:
    from torch import Tensor

    from engine.models.layers.mixer import Memory
    from kernels.attention.batch_layout import BatchLayout
    from kernels.ops import Ops

PLACE = "mtp."  # prefix of its tensors' names
PROJECTION = f"{PLACE}fc"
# Endings of tensors that matrices have only where they are quantised.
QUANTISED = (".weight_scale", ".weight_scale_inv", ".weight_packed", ".qweight")


@dataclass(frozen=True, slots=True)
class DraftHeadConfig:
    """Config of a head, without tensors: its layer, and its other norms."""

    layer: LayerConfig
    norm: RmsNormConfig
    plain_layer: bool = False  # True if the layer is plain in any weight format
    plain_projection: bool = True

    def build(self, index: int, new: Allocator) -> DraftHead:
        """Build the head, whose layer is numbered `index`, after the decoder's."""
        hidden, plain = self.layer.hidden_size, replace(new, weight_format=PLAIN)
        rows = ((PROJECTION, hidden),)
        projection = LinearConfig(rows, 2 * hidden, False, "rows", False)
        return DraftHead(
            embedding_norm=self.norm.build(f"{PLACE}pre_fc_norm_embedding", hidden, new),
            hidden_norm=self.norm.build(f"{PLACE}pre_fc_norm_hidden", hidden, new),
            projection=(plain if self.plain_projection else new).linear(projection),
            layer=self.layer.build(index, plain if self.plain_layer else new),
            norm=self.norm.build(f"{PLACE}norm", hidden, new),
        )


def stored_head(
    head: DraftHeadConfig, own_names: Sequence[str], index: int, *, online: bool
) -> DraftHeadConfig | None:
    """Return the head as files have it whose tensors are `own_names`; None: they have none.

    `index`: number of its layer; `online`: plain files are quantised as they are loaded.
    """
    projection = [name for name in own_names if name.startswith(f"{PROJECTION}.")]
    layer = [name for name in own_names if name.startswith(f"model.layers.{index}.")]
    if not projection or not layer:
        return None
    plain = [not any(name.endswith(QUANTISED) for name in names) for names in (projection, layer)]
    return replace(head, plain_projection=plain[0], plain_layer=plain[1] and not online)


@dataclass(frozen=True, slots=True)
class DraftHead:
    """A head with its tensors, of H hidden."""

    embedding_norm: RmsNorm
    hidden_norm: RmsNorm
    projection: Linear  # (H, 2 H)
    layer: DecoderLayer
    norm: RmsNorm

    def hidden(
        self,
        ops: Ops,
        embedded: Tensor,
        hidden: Tensor,
        layout: BatchLayout,
        memory: Memory,
        outputs: Tensor,
    ) -> Tensor:
        """Compute the head's hidden states (S, H) of the tokens `outputs` (S,); write its KV.

        `embedded` (T, H): embeddings of the tokens after those whose states are `hidden` (T, H).
        """
        import torch  # imported here, since sizes are read without torch

        joined = torch.cat(
            (self.embedding_norm.norm(ops, embedded), self.hidden_norm.norm(ops, hidden)), dim=1
        )
        entering = self.projection.product(ops, joined)
        entered, residual = self.layer.enter(ops, None, entering, layout, memory)
        if not outputs.shape[0]:
            return hidden[:0]
        finished, residual = self.layer.finish(ops, entered, residual, layout, memory, outputs)
        assert finished is not None, "a plain layer leaves its output to the next norm"
        normed, _ = self.norm.add(ops, finished, residual)
        assert isinstance(normed, torch.Tensor), "the head is plain in every format"
        return normed
