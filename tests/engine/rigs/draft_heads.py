"""A head that drafts for a small Qwen3.5, written from its definition, and its checkpoints.

    layer(fc([norm(embedding of the next token), norm(hidden state)]))

with the decoder layer, the norms and the rope of `transformers`, whose models leave the head out.
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
from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen

from engine.drafting.draft import Draft, NoDrafts
from engine.drafting.head import HeadDraft
from engine.sequences.sequence import Sequence
from tests.engine.rigs.checkpoints import Checkpoint

SMALLER = ("o_proj.weight", "out_proj.weight", "down_proj.weight")  # what layers put out
PART = 0.02


def smaller(tensors: dict[str, Tensor]) -> None:
    """Make what layers add a part of itself."""
    for name, tensor in tensors.items():
        if name.endswith(SMALLER):
            tensor.mul_(PART)


class Truth:
    """The head in plain modules, float64."""

    @torch.inference_mode()
    def __init__(self, saved: Checkpoint) -> None:
        self.model: Any = deepcopy(saved.truth)
        config = self.model.config
        torch.manual_seed(5)
        layers = list(config.layer_types)
        self.layer = qwen.Qwen3_5DecoderLayer(config, layers.index("full_attention"))
        self.norms = [qwen.Qwen3_5RMSNorm(config.hidden_size, config.rms_norm_eps) for _ in "123"]
        self.fc = torch.nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.saved = saved
        for module in (self.layer, *self.norms):
            for parameter in module.parameters():
                spread = 1.5 * parameter.shape[-1] ** -0.5 if parameter.dim() == 2 else 0.05
                torch.nn.init.normal_(parameter, std=spread)
        torch.nn.init.normal_(self.fc.weight, std=0.02)
        self.fc.weight[:, : config.hidden_size] += torch.eye(config.hidden_size)
        self.norms[2].weight.copy_(self.model.model.norm.weight)
        smaller(dict(self.layer.named_parameters()))
        smaller(dict(self.model.named_parameters()))

    def tensors(self) -> dict[str, Tensor]:
        """As a checkpoint names them."""
        names = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
        found = {
            f"mtp.{name}.weight": norm.weight for name, norm in zip(names, self.norms, strict=True)
        }
        found |= {f"mtp.layers.0.{name}": one for name, one in self.layer.named_parameters()}
        found["mtp.fc.weight"] = self.fc.weight
        return {name: one.detach().clone() for name, one in found.items()}

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
        of_embedding, of_hidden, last = (norm.double() for norm in self.norms)
        x = self.fc.double()(torch.cat((of_embedding(embedded), of_hidden(hidden)), -1))
        count = x.shape[1]
        places = torch.arange(count)[None]
        mask = torch.full((count, count), -torch.inf, dtype=torch.float64).triu(1)[None, None]
        rope = model.model.rotary_emb(x.float(), places)
        rope = tuple(one.double() for one in rope)
        out = self.layer.double()(x, position_embeddings=rope, attention_mask=mask)
        return torch.as_tensor(last(out[0] if isinstance(out, tuple) else out))

    @torch.inference_mode()
    def _logits_of(self, output: Tensor) -> Tensor:
        model = self.model
        return torch.as_tensor(model.lm_head.weight.double() @ output[0].T).T


def save_with_head(truth: Truth, made: Path, head: dict[str, Tensor]) -> Path:
    """Save the truth's decoder in `made`, with the tensors of a head."""
    saved = truth.saved.model_dir
    config = json.loads((saved / "config.json").read_text()) | {"mtp_num_hidden_layers": 1}
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
