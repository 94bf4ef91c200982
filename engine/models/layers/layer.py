"""The layers of Llama and similar models: their configs, and their computation.

    config.json -> LayerConfig of each layer -> DecoderLayer, which has tensors
    x -> norm -> mixer -> + -> norm -> MLP -> + x        mixer: attention, or a recurrence
    x -> norm -> mixer -> + x                            in a layer without an MLP

Configs can be compared and hashed, because layers with equal configs launch the same kernels. An
architecture with another order of norms has its own configs (`sandwich`). At import, torch is
needed only for types, as in `modules`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from engine.models.layers.attention import AttentionConfig
from engine.models.layers.delta_net import DeltaNetConfig
from engine.models.layers.latent import LatentConfig
from engine.models.layers.mamba import MambaConfig
from engine.models.layers.mixer import Entered, KvConfig, LayerStep, Mixer
from engine.models.layers.mixture import Mixture, MixtureConfig
from engine.models.layers.mlp import GatedMlp, MlpConfig
from engine.models.layers.norms import RmsNorm, RmsNormConfig
from engine.models.modules import Allocator, LinearConfig

if TYPE_CHECKING:
    from torch import Tensor

    from engine.models.rank_group import RankGroup
    from kernels.collectives.peer_rows import PeerProduct
    from kernels.linear.fp8_rows import Fp8Rows, Scaling


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """The config of a layer, without tensors."""

    hidden_size: int
    mixer: AttentionConfig | LatentConfig | DeltaNetConfig | MambaConfig
    mlp: MlpConfig | MixtureConfig | None  # None: neither MLP nor norm before it
    norm: RmsNormConfig
    before_mlp: ClassVar[str] = "post_attention_layernorm"
    adds_parts: ClassVar[bool] = True  # True: the layer's norms can add the parts of a product

    @property
    def attention(self) -> AttentionConfig:
        """The mixer, which must be attention. Raises TypeError for latents or recurrence."""
        if not isinstance(self.mixer, AttentionConfig):
            raise TypeError("the layer is recurrent, or has latents")
        return self.mixer

    @property
    def num_weights(self) -> int:
        """The number of weights used per token, without norms and biases."""
        hidden = self.hidden_size
        of_mlp = 0 if self.mlp is None else self.mlp.num_weights(hidden)
        return self.mixer.num_weights(hidden) + of_mlp

    def matrices(self, index: int) -> Iterator[LinearConfig]:
        """Yield all matrices of this layer, which is number `index` in the model."""
        prefix, hidden = f"model.layers.{index}.", self.hidden_size
        yield from self.mixer.matrices(prefix + self.mixer.place, hidden)
        if self.mlp is not None:
            yield from self.mlp.matrices(prefix + self.mlp.place, hidden)

    @property
    def num_held_weights(self) -> int:
        """The number of weights of the layer, with all experts but without norms and biases."""
        return sum(one.size_out * one.size_in for one in self.matrices(0))

    def build(self, index: int, new: Allocator) -> DecoderLayer:
        """Build this layer, which is number `index` in the model."""
        prefix, hidden = f"model.layers.{index}.", self.hidden_size

        def norm(name: str, takes_fp8: Scaling | None) -> RmsNorm:
            return replace(self.norm.build(prefix + name, hidden, new), to_fp8=takes_fp8)

        place = prefix + self.mixer.place
        mixer = self.mixer.build(place, hidden, self.norm, new, in_parts=self.adds_parts)
        mlp = self.build_mlp(prefix, new)
        return DecoderLayer(
            config=self,
            index=index,
            input_norm=norm("input_layernorm", mixer.takes_fp8),
            mixer=mixer,
            post_norm=None if mlp is None else norm(self.before_mlp, mlp.takes_fp8),
            mlp=mlp,
            group=new.group,
        )

    def build_mlp(self, prefix: str, new: Allocator) -> GatedMlp | Mixture | None:
        """Build the MLP, if there is one. Its product is computed in parts if possible."""
        if self.mlp is None:
            return None
        return self.mlp.build(prefix + self.mlp.place, self.hidden_size, new)


def attentions(layers: Iterable[LayerConfig]) -> tuple[KvConfig, ...]:
    """Return the attention configs of the layers that have attention, in order."""
    return tuple(one.mixer for one in layers if isinstance(one.mixer, KvConfig))


def keeps_kv(layer: LayerConfig) -> bool:
    """Return whether a layer keeps its own keys and values."""
    return isinstance(layer.mixer, KvConfig) and layer.mixer.kv_of is None


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """A layer with its tensors. H is the hidden size, `index` the layer's number in the model."""

    config: LayerConfig
    index: int
    input_norm: RmsNorm
    mixer: Mixer
    post_norm: RmsNorm | None  # None: the layer has no MLP
    mlp: GatedMlp | Mixture | None
    group: RankGroup | None

    def enter(
        self, step: LayerStep, hidden: Tensor | PeerProduct | None, residual: Tensor
    ) -> tuple[Entered, Tensor]:
        """Compute the first half of the mixer, and the residual (T, H).

        Write KV or recurrent states. `hidden` is the output of the previous layer, complete or in
        parts. It is None in the first layer, or if the residual already includes it.
        """
        normed: Tensor | Fp8Rows
        if hidden is None:
            normed = self.input_norm.norm(step.ops, residual)
        else:
            normed, residual = self.input_norm.add(step.ops, hidden, residual)
        return self.mixer.enter(step, normed, residual.dtype), residual

    def finish(
        self, step: LayerStep, entered: Entered, residual: Tensor, outputs: Tensor | None
    ) -> tuple[Tensor | PeerProduct | None, Tensor]:
        """Compute the layer's output, complete or in parts, and the residual, both (T, H).

        The output is None if the residual already includes it. If `outputs` is given (last layer
        only), both are (S, H), of the tokens `outputs`.
        """
        mixed, residual = self.mix(step, entered, residual, outputs)
        if self.post_norm is None or self.mlp is None:
            return mixed, residual
        normed, residual = self.post_norm.add(step.ops, mixed, residual)
        return self.of_all_ranks(self.mlp.product(step.ops, normed), residual), residual

    def mix(
        self, step: LayerStep, entered: Entered, residual: Tensor, outputs: Tensor | None
    ) -> tuple[Tensor | PeerProduct, Tensor]:
        """Compute the mixer's output, complete or in parts, and the residual, for `finish`."""
        mixed = self.mixer.leave(step, entered, outputs)
        if outputs is not None:
            residual = residual.index_select(0, outputs)
        return self.of_all_ranks(mixed, residual), residual

    def of_all_ranks(self, product: Tensor, residual: Tensor) -> Tensor | PeerProduct:
        """Sum the products (T, H) of all ranks, in a form that the layer's norms can read."""
        if self.group is None:
            return product
        return self.group.total(product, residual.dtype, in_parts=self.config.adds_parts)
