"""An architecture whose layers have all parts of gpt-oss and Gemma that Llama lacks.

    layer    0, 3, ...          1, 4, ...               2, 5, ...
    window   24                 24                      none
    scores   capped             with sinks              capped, with sinks
    norms    4, of 1 + weight   2, rounded once         4, of 1 + weight
    MLP      GeGLU              experts with biases,    GeGLU
                                packed, limited gate

Embeddings are scaled and logits capped. `SERVED` registers the architecture under its name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import torch
from safetensors.torch import save_file

from engine.models.architectures.dense.llama import QWEN3
from engine.models.config import ModelConfig, ModelSizes
from engine.models.layers.layer import LayerConfig
from engine.models.layers.mixture import MixtureConfig
from engine.models.layers.mlp import MlpConfig
from engine.models.layers.norms import RmsNormConfig
from engine.models.layers.sandwich import SandwichLayerConfig
from engine.models.parameters import checkpoint_tensors, dummy_parameters
from engine.models.served.reading import read_model_config
from engine.models.served.registry import ServedModels
from kernels.norms.gate import GELU_TANH, Gate

NAME = "AlternatingForCausalLM"
WINDOW = 24
CONFIG = {
    "architectures": [NAME],
    "vocab_size": 300,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}
ONE_PLUS = RmsNormConfig(1e-5, one_plus=True)


@dataclass(frozen=True)
class Alternating:
    """An architecture in which only some layers have a window. Implements `Architecture`.

    `window` is the number of keys in a window, or None if no layer has a window.
    """

    window: int | None = WINDOW
    examples: tuple[str, ...] = ("none",)

    def read(self, path: Path) -> ModelConfig:
        model = QWEN3.read(path)
        return replace(
            model,
            family="alternating",
            layers=self.layers(path),
            final_norm=ONE_PLUS,
            embedding_scale=model.hidden_size**0.5,
            logits_softcap=30.0,
        )

    def sizes(self, path: Path) -> ModelSizes:
        return QWEN3.sizes(path)

    def layers(self, path: Path) -> tuple[LayerConfig, ...]:
        layers = QWEN3.read(path).layers
        return tuple(self._layer(layer, index) for index, layer in enumerate(layers))

    def _layer(self, layer: LayerConfig, index: int) -> LayerConfig:
        kind = index % 3
        attention = replace(
            layer.attention,
            window=None if kind == 2 else self.window,
            softcap=None if kind == 1 else 5.0,
            sinks=kind > 0,
            scale=0.3,
        )
        size = layer.hidden_size
        if kind == 1:
            return LayerConfig(size, attention, MIXTURE, RmsNormConfig(1e-5, rounds_once=True))
        return SandwichLayerConfig(size, attention, MlpConfig(64, gate=GELU_TANH), ONE_PLUS)


MIXTURE = MixtureConfig(
    size=32,
    num_experts=4,
    top_k=2,
    renormalise=True,
    gate=Gate(limit=7.0, alpha=1.702),
    bias=True,
    router="router",
    router_bias=True,
    packed=True,
)
SERVED = ServedModels({NAME: Alternating()})
SERVED_WITHOUT_WINDOWS = ServedModels({NAME: Alternating(window=None)})


def make_alternating_checkpoint(model_dir: Path, num_layers: int = 6) -> None:
    """Write a model of random weights, under the names and in the shapes of checkpoints."""
    config = {**CONFIG, "num_hidden_layers": num_layers}
    (model_dir / "config.json").write_bytes(msgspec.json.encode(config))
    model = read_model_config(model_dir, SERVED)
    parameters = dummy_parameters(model, torch.float32, torch.device("cpu"), seed=0)
    weights = {}
    for name, tensor in checkpoint_tensors(parameters).items():
        weight = tensor.view.clone()
        if name.endswith("norm.weight"):
            weight = torch.randn(weight.shape) * 0.2
        elif name.endswith("experts.gate_up_proj_bias"):
            weight = weight.flatten(1, 2)  # columns of gate and up alternate
        elif name.endswith("experts.gate_up_proj"):
            weight = weight.transpose(1, 2).flatten(1, 2).transpose(1, 2)
        weights[name] = weight.contiguous()
    save_file(weights, model_dir / "model.safetensors")
