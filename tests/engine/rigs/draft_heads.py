"""Heads that draft, as `transformers` computes them, and small checkpoints with them.

The decoder's layers add little to the embedding, from which the head guesses: most of its drafts
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

from engine.drafting.draft import Draft, NoDrafts
from engine.drafting.head import HeadDraft
from engine.sequences.sequence import Sequence
from tests.engine.rigs.checkpoints import Checkpoint

# What layers put out: of all experts in one tensor, too.
SMALLER = ("o_proj.weight", "out_proj.weight", "down_proj.weight", "experts.down_proj")
PART = 0.02
# Prefixes of a head's tensors in checkpoints, instead of those of `MtpLayer`.
QWEN = {
    "mtp_block.": "mtp.layers.0.",
    "eh_proj.": "mtp.fc.",
    "enorm.": "mtp.pre_fc_norm_embedding.",
    "hnorm.": "mtp.pre_fc_norm_hidden.",
    "post_norm.": "mtp.norm.",
}
DEEPSEEK = {"mtp_block.": "", "post_norm.": "shared_head.norm.", "": ""}
# Fields of config.json that say how many heads there are.
FIELDS = {"mtp_num_hidden_layers": 1, "num_nextn_predict_layers": 1}


def smaller(tensors: dict[str, Tensor]) -> None:
    """Make what layers add a part of itself."""
    for name, tensor in tensors.items():
        if name.endswith(SMALLER):
            tensor.mul_(PART)


class Truth:
    """A decoder and its head in `transformers`, the head in float64."""

    @torch.inference_mode()
    def __init__(self, saved: Checkpoint) -> None:
        self.model: Any = deepcopy(saved.truth)
        decoder, config = self.model.model, self.model.config
        config._experts_implementation = "eager"  # the others have no float64
        torch.manual_seed(5)
        kinds = getattr(config, "layer_types", None) or ["full_attention"] * len(decoder.layers)
        last = max(index for index, kind in enumerate(kinds) if kind == "full_attention")
        kind, norm = type(decoder.layers[last]), type(decoder.norm)
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
        joined[:, : config.hidden_size] += torch.eye(config.hidden_size)
        self.head.post_norm.weight.copy_(decoder.norm.weight)
        smaller(dict(self.head.named_parameters()))
        smaller(dict(self.model.named_parameters()))

    def tensors(self) -> dict[str, Tensor]:
        """As a checkpoint names them."""
        is_qwen = "Qwen" in type(self.model).__name__
        names = QWEN if is_qwen else DEEPSEEK
        before = "" if is_qwen else f"model.layers.{len(self.model.model.layers)}."
        found = {}
        for name, tensor in self.head.state_dict().items():
            place = next(one for one in names if name.startswith(one))
            stored = names[place] + name.removeprefix(place)
            found[before + stored] = tensor.detach().clone()
        return found

    def logits(self, token_ids: list[int]) -> Tensor:
        """(n - 1, V): what it expects after each token but the first."""
        return self._logits_of(self._output(self._hidden(token_ids), token_ids[1:]))

    def drafts(self, token_ids: list[int], count: int) -> list[int]:
        """The tokens that it expects after all of these, each from the one before."""
        hidden, following = self._hidden(token_ids), token_ids[1:]
        for _ in range(count):
            put_out = self._output(hidden, following)[:, -1:]
            hidden = torch.cat((hidden, put_out), 1)
            following = [*following, int(self._logits_of(put_out).argmax())]
        return following[-count:]

    @torch.inference_mode()
    def _hidden(self, token_ids: list[int]) -> Tensor:
        """(1, n - 1, H): the decoder's states of all tokens but the last."""
        model = self.model
        ids = torch.tensor([token_ids[:-1]])
        return torch.as_tensor(model.model(ids, use_cache=False).last_hidden_state.double())

    @torch.inference_mode()
    def _output(self, hidden: Tensor, following: list[int]) -> Tensor:
        """(1, n, H): the head's states, from states and the tokens that follow them."""
        model = self.model
        embedded = model.model.embed_tokens(torch.tensor([following])).double()
        count = embedded.shape[1]
        mask = torch.full((count, count), -torch.inf, dtype=torch.float64).triu(1)[None, None]
        rope = model.model.rotary_emb(embedded.float(), torch.arange(count)[None])
        rope = tuple(one.double() for one in rope)
        return torch.as_tensor(self.head.double()(embedded, hidden, rope, mask, None, None))

    @torch.inference_mode()
    def _logits_of(self, output: Tensor) -> Tensor:
        model = self.model
        return torch.as_tensor(model.lm_head.weight.double() @ output[0].T).T


def save_with_head(truth: Truth, made: Path, head: dict[str, Tensor]) -> Path:
    """Save the truth's decoder in `made`, with the tensors of a head."""
    saved = truth.saved.model_dir
    config = json.loads((saved / "config.json").read_text()) | FIELDS
    (made / "config.json").write_text(json.dumps(config))
    tensors = load_file(saved / "model.safetensors")
    smaller(tensors)
    save_file(tensors | head, made / "model.safetensors", metadata={"format": "pt"})
    return made


@dataclass
class HeadAlone(NoDrafts):
    """Verifies each token that the head drafts; keeps them by the number of known tokens."""

    drafted: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def is_worth_waiting(self, decodes: list[Sequence]) -> bool:
        """Return whether there is a row."""
        return bool(decodes)

    def propose(self, decodes: list[Sequence]) -> dict[Sequence, Draft]:
        """Draft what the head did."""
        drafts = {}
        for one in decodes:
            token_ids = HeadDraft(one).draft(one.num_tokens, 9)
            drafts[one] = Draft(token_ids, "mtp")
            self.drafted[one.num_tokens] = token_ids
        return drafts
