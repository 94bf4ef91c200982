"""MiMo 7B: the decoder of Qwen2, and a draft head whose tensors have other names.

The head's projection reads the hidden state first, then the embedding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from engine.models.architectures.dense.llama import Llama
from engine.models.architectures.fields.windows import by_layer
from engine.models.config import ModelConfig, ModelSizes
from engine.models.layers.draft_head import DraftHeadConfig, HeadNames
from engine.models.layers.layer import LayerConfig

HEADS = "model.mtp_layers."
OF_LAYER = "self_attn.", "mlp.", "input_layernorm.", "post_attention_layernorm."
OUTSIDE = "input_proj", "token_layernorm", "hidden_layernorm", "final_layernorm"


@dataclass(frozen=True, slots=True)
class MiMo:
    """The Qwen2 architecture with MiMo's draft head. Implements `Architecture`."""

    decoder: Llama = field(default_factory=lambda: Llama("mimo", qkv_bias=True, windows=by_layer))
    examples: tuple[str, ...] = ("MiMo 7B",)

    def read(self, path: Path) -> ModelConfig:
        model = self.decoder.read(path)
        names = replace(
            model.names,
            prefixes=(*_prefixes(len(model.layers)), *model.names.prefixes),
            surplus=(*model.names.surplus, HEADS),
        )
        head = None
        if len(names.drafting_layers) == 1:
            own = HeadNames(*(f"{HEADS}0.{name}" for name in OUTSIDE))
            head = DraftHeadConfig(model.layers[-1], model.final_norm, own, hidden_first=True)
        return replace(model, names=names, possible_head=head)

    def sizes(self, path: Path) -> ModelSizes:
        return self.decoder.sizes(path)

    def layers(self, path: Path) -> tuple[LayerConfig, ...]:
        return self.decoder.layers(path)


def _prefixes(index: int) -> Iterator[tuple[str, str]]:
    for part in OF_LAYER:
        yield f"{HEADS}0.{part}", f"model.layers.{index}.{part}"


MIMO = MiMo()
