r"""The draft head of a model checkpoint: multi-token prediction (MTP) by one layer.

    embedding of the next token -> norm -\
    hidden state of a token     -> norm -- joined -> projection -> layer -> norm -> output head

The hidden state is the decoder's, after its final norm. The draft head's logits at a token predict
the token after the next token. The layer has its own KV in the pool. The embedding and the output
head are those of the decoder. At import, torch is needed only for types, as in `modules`. Source:
DeepSeek-V3 (arXiv 2412.19437), section 2.2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from engine.models.layers.layer import DecoderLayer, LayerConfig
from engine.models.layers.norms import RmsNorm, RmsNormConfig
from engine.models.modules import Allocator, Linear, LinearConfig
from engine.models.weight_formats.plain import PLAIN

if TYPE_CHECKING:
    from torch import Tensor

    from engine.models.layers.mixer import LayerStep


@dataclass(frozen=True, slots=True)
class HeadNames:
    """The names of a draft head's tensors outside its layer."""

    projection: str
    embedding_norm: str
    hidden_norm: str
    norm: str


OF_QWEN = HeadNames("mtp.fc", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm")


def names_beside(index: int) -> HeadNames:
    """Return the names in DeepSeek's files, which begin with the prefix of layer `index`."""
    names = "eh_proj", "enorm", "hnorm", "shared_head.norm"
    return HeadNames(*(f"model.layers.{index}.{name}" for name in names))


@dataclass(frozen=True, slots=True)
class DraftHeadConfig:
    """The config of a draft head: its layer, and its norms outside the layer."""

    layer: LayerConfig
    norm: RmsNormConfig
    names: HeadNames
    plain_layer: bool = False  # True if the layer's weights are never quantised
    plain_projection: bool = True
    hidden_first: bool = False  # True if the projection reads the hidden state first (MiMo)

    def build(self, index: int, new: Allocator) -> DraftHead:
        """Build the draft head. Its layer gets the number `index`, after the decoder's layers."""
        hidden, plain = self.layer.hidden_size, replace(new, weight_format=PLAIN)
        names = self.names
        projection = LinearConfig(((names.projection, hidden),), 2 * hidden, False, "rows", False)
        return DraftHead(
            embedding_norm=self.norm.build(names.embedding_norm, hidden, new),
            hidden_norm=self.norm.build(names.hidden_norm, hidden, new),
            projection=(plain if self.plain_projection else new).linear(projection),
            layer=self.layer.build(index, plain if self.plain_layer else new),
            norm=self.norm.build(names.norm, hidden, new),
            hidden_first=self.hidden_first,
        )


@dataclass(frozen=True, slots=True)
class DraftHead:
    """A draft head with its tensors. H is the hidden size."""

    embedding_norm: RmsNorm
    hidden_norm: RmsNorm
    projection: Linear  # (H, 2 H)
    layer: DecoderLayer
    norm: RmsNorm
    hidden_first: bool = False

    def hidden(
        self,
        step: LayerStep,
        embedded: Tensor,
        hidden: Tensor,
        outputs: Tensor,
    ) -> Tensor:
        """Compute the draft head's hidden states (S, H) of the tokens `outputs` (S,).

        Write the KV of all T tokens. `hidden` (T, H) are the decoder's hidden states of the T
        tokens. `embedded` (T, H) are the embeddings of their next tokens.
        """
        import torch  # imported here, so that configs can be read without torch

        ops = step.ops
        joined = self.embedding_norm.norm(ops, embedded), self.hidden_norm.norm(ops, hidden)
        if self.hidden_first:
            joined = joined[::-1]
        entering = self.projection.product(ops, torch.cat(joined, dim=1))
        entered, residual = self.layer.enter(step, None, entering)
        if not outputs.shape[0]:
            return hidden[:0]
        finished, residual = self.layer.finish(step, entered, residual, outputs)
        assert finished is not None, "a plain layer leaves its output to the next norm"
        normed, _ = self.norm.add(ops, finished, residual)
        assert isinstance(normed, torch.Tensor), "the head is plain in every format"
        return normed
