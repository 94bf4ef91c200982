"""Draft heads, as `transformers` computes them, and small checkpoints with them.

The decoder's layers add little to the embedding, from which the head drafts. So most of its drafts
are right, and some are wrong.
"""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.modeling_layers import MtpLayer
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHBlock

from engine.drafting.draft import Draft, NoDrafts
from engine.drafting.head import HeadDraft
from engine.sequences.sequence import Sequence
from tests.engine.rigs.checkpoints import Checkpoint

# Names of the layers' output matrices, also of all experts' in one tensor.
SMALLER = ("o_proj.weight", "out_proj.weight", "down_proj.weight", "experts.down_proj")
PART = 0.02
# Prefixes of a head's tensors in checkpoints, by the prefixes of `MtpLayer`.
QWEN = {
    "mtp_block.": "mtp.layers.0.",
    "eh_proj.": "mtp.fc.",
    "enorm.": "mtp.pre_fc_norm_embedding.",
    "hnorm.": "mtp.pre_fc_norm_hidden.",
    "post_norm.": "mtp.norm.",
}
NEMOTRON = {
    "mtp_block.attention.": "mtp.layers.0.",
    "mtp_block.experts.": "mtp.layers.1.",
    "post_norm.": "mtp.layers.1.final_layernorm.",
    "": "mtp.layers.0.",
}
MIMO = {
    "mtp_block.": "model.mtp_layers.0.",
    "eh_proj.": "model.mtp_layers.0.input_proj.",
    "enorm.": "model.mtp_layers.0.token_layernorm.",
    "hnorm.": "model.mtp_layers.0.hidden_layernorm.",
    "post_norm.": "model.mtp_layers.0.final_layernorm.",
}
NAMES = {"Qwen2": MIMO, "Qwen": QWEN, "Nemotron": NEMOTRON}
DEEPSEEK = {"mtp_block.": "", "post_norm.": "shared_head.norm.", "": ""}
KINDS = "layers_block_type", "layer_types"  # fields of config.json that list the layers' kinds
# Fields of config.json that give the number of draft heads.
FIELDS = {"mtp_num_hidden_layers": 1, "num_nextn_predict_layers": 1}
# Fields of MiMo's config.json, whose decoder is Qwen2's.
OF_MIMO = {"architectures": ["MiMoForCausalLM"], "model_type": "mimo"}


def smaller(tensors: dict[str, Tensor]) -> None:
    """Scale down the output matrices of layers."""
    for name, tensor in tensors.items():
        if name.endswith(SMALLER):
            tensor.mul_(PART)


def apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Split stacked experts into a matrix for each expert."""
    for name in [one for one in tensors if one.endswith(("experts.up_proj", "experts.down_proj"))]:
        place, _, last = name.rpartition(".")
        for number, expert in enumerate(tensors.pop(name)):
            tensors[f"{place}.{number}.{last}.weight"] = expert.clone()
    return tensors


class TwoBlocks(torch.nn.Module):
    """The layer of Nemotron's head: a block of attention, and one of experts."""

    def __init__(self, config: Any, attention: int) -> None:
        super().__init__()
        self.attention = NemotronHBlock(config, attention)
        self.experts = NemotronHBlock(config, config.layers_block_type.index("moe"))

    def forward(self, hidden: Tensor, attention_mask: Tensor, **fields: Any) -> Tensor:
        del fields
        mixed = self.attention(hidden, attention_mask=attention_mask)
        return torch.as_tensor(self.experts(mixed))


class Truth:
    """A decoder and its head in `transformers`, the head in float64."""

    @torch.inference_mode()
    def __init__(self, saved: Checkpoint) -> None:
        self.model: Any = deepcopy(saved.truth)
        decoder, config = self.model.model, self.model.config
        self.is_nemotron = config.model_type == "nemotron_h"
        self.is_mimo = config.model_type == "qwen2"
        config.mtp_hidden_states_first = self.is_mimo
        if self.is_nemotron:
            decoder.norm, config.rms_norm_eps = decoder.norm_f, config.layer_norm_epsilon
        config._experts_implementation = "eager"  # other implementations have no float64
        torch.manual_seed(5)
        found = (getattr(config, field, None) for field in KINDS)
        kinds = next(filter(None, found), ["full_attention"] * len(decoder.layers))
        last = max(index for index, kind in enumerate(kinds) if kind == "full_attention")
        kind: Any = TwoBlocks if self.is_nemotron else type(decoder.layers[last])
        norm = type(decoder.norm)
        self.head: Any = MtpLayer(config, kind, norm, last)
        self.saved = saved
        middle = 1.0 if decoder.norm.weight.mean() > 0.5 else 0.0
        for name, parameter in self.head.named_parameters():
            is_matrix = parameter.dim() > 1
            spread = 1.5 * parameter.shape[-1] ** -0.5 if is_matrix else 0.05
            mean = middle if "norm" in name else 0.0
            torch.nn.init.normal_(parameter, mean=mean, std=spread)
        joined = self.head.eh_proj.weight
        torch.nn.init.normal_(joined, std=0.02)
        of_embedding = joined[:, config.hidden_size * self.is_mimo :][:, : config.hidden_size]
        of_embedding += torch.eye(config.hidden_size)
        self.head.post_norm.weight.copy_(decoder.norm.weight)
        smaller(dict(self.head.named_parameters()))
        smaller(dict(self.model.named_parameters()))

    def tensors(self) -> dict[str, Tensor]:
        """Return the head's tensors by their names in a checkpoint."""
        names = next((one for family, one in NAMES.items() if family in self.family), DEEPSEEK)
        before = f"model.layers.{len(self.model.model.layers)}." if names is DEEPSEEK else ""
        found = {}
        for name, tensor in self.head.state_dict().items():
            place = next(one for one in names if name.startswith(one))
            stored = names[place] + name.removeprefix(place)
            found[before + stored] = tensor.detach().clone()
        return apart(found) if self.is_nemotron else found

    @property
    def family(self) -> str:
        return type(self.model).__name__

    def logits(self, token_ids: list[int]) -> Tensor:
        """Return the head's logits (n - 1, V) after each token except the first."""
        return self._logits_of(self._output(self._hidden(token_ids), token_ids[1:]))

    def drafts(self, token_ids: list[int], count: int) -> list[int]:
        """Return the tokens that the head drafts after `token_ids`, each from the draft before."""
        hidden, following = self._hidden(token_ids), token_ids[1:]
        for _ in range(count):
            put_out = self._output(hidden, following)[:, -1:]
            hidden = torch.cat((hidden, put_out), 1)
            following = [*following, int(self._logits_of(put_out).argmax())]
        return following[-count:]

    @torch.inference_mode()
    def _hidden(self, token_ids: list[int]) -> Tensor:
        """Return the decoder's hidden states (1, n - 1, H) of all tokens except the last."""
        model = self.model
        ids = torch.tensor([token_ids[:-1]])
        return torch.as_tensor(model.model(ids, use_cache=False).last_hidden_state.double())

    @torch.inference_mode()
    def _output(self, hidden: Tensor, following: list[int]) -> Tensor:
        """Return the head's hidden states (1, n, H), from hidden states and the tokens that follow
        them.
        """
        model = self.model
        embedded = model.get_input_embeddings()(torch.tensor([following])).double()
        count = embedded.shape[1]
        mask = torch.full((count, count), -torch.inf, dtype=torch.float64).triu(1)[None, None]
        rope = None
        if not self.is_nemotron:
            rope = model.model.rotary_emb(embedded.float(), torch.arange(count)[None])
            rope = tuple(one.double() for one in rope)
        return torch.as_tensor(self.head.double()(embedded, hidden, rope, mask, None, None))

    @torch.inference_mode()
    def _logits_of(self, output: Tensor) -> Tensor:
        model = self.model
        return torch.as_tensor(model.lm_head.weight.double() @ output[0].T).T


def save_with_head(truth: Truth, made: Path, head: dict[str, Tensor]) -> Path:
    """Save the truth's decoder in directory `made`, with the tensors of a draft head."""
    saved = truth.saved.model_dir
    config = json.loads((saved / "config.json").read_text()) | FIELDS
    config |= OF_MIMO if truth.is_mimo else {}
    (made / "config.json").write_text(json.dumps(config))
    tensors = load_file(saved / "model.safetensors")
    smaller(tensors)
    save_file(tensors | head, made / "model.safetensors", metadata={"format": "pt"})
    return made


@dataclass
class HeadAlone(NoDrafts):
    """Drafting with the draft head alone, which records its drafts by the number of known
    tokens.
    """

    drafted: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def is_worth_waiting(self, decodes: list[Sequence]) -> bool:
        """Return whether there is any sequence."""
        return bool(decodes)

    def propose(self, decodes: list[Sequence]) -> dict[Sequence, Draft]:
        """Propose the head's drafts."""
        drafts = {}
        for one in decodes:
            token_ids = HeadDraft(one).draft(one.num_tokens, 9)
            drafts[one] = Draft(token_ids, "mtp")
            self.drafted[one.num_tokens] = token_ids
        return drafts
