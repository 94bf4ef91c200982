"""The head that a checkpoint brings to draft with, beside one written from its definition.

    layer(fc([norm(embedding of the next token), norm(hidden state)]))

with the decoder layer, the norms and the rope of `transformers`, whose models leave the head out.
The decoder's layers add little to the embedding, from which the head guesses: most of its drafts
are right, and some are wrong.
"""

from __future__ import annotations

import json
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen

from engine.config import EngineConfig
from engine.drafting.draft import Draft, NoDrafts
from engine.drafting.head import HeadDraft
from engine.execution.further_drafts import FURTHER
from engine.link.messages import SamplingParams
from engine.sequences.sequence import Sequence
from engine.step import DECODE, Row, Step
from prefix_cache.namespace import Namespace
from tests.engine.conftest import MakeCheckpoint
from tests.engine.rigs.checkpoints import Checkpoint
from tests.engine.rigs.hand_driven import HandDriven, build_runner, data_row, random_prompt
from tests.engine.rigs.ranks import ThreadRanks
from tests.seams.support.real_engine import Bounds, RealEngine, as_it_is

NAMESPACE = Namespace(b"n" * 16)
GREEDY = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)


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


@pytest.fixture(scope="module")
def truth(checkpoint: MakeCheckpoint) -> Truth:
    return Truth(checkpoint("qwen3.5"))


@pytest.fixture(scope="module")
def model_dir(truth: Truth, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint with its head."""
    return _saved(truth, tmp_path_factory.mktemp("with head"), truth.tensors())


@pytest.fixture(scope="module")
def plain_dir(truth: Truth, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint without its head."""
    return _saved(truth, tmp_path_factory.mktemp("plain"), {})


def _saved(truth: Truth, made: Path, head: dict[str, Tensor]) -> Path:
    saved = truth.saved.model_dir
    config = json.loads((saved / "config.json").read_text()) | {"mtp_num_hidden_layers": 1}
    (made / "config.json").write_text(json.dumps(config))
    tensors = load_file(saved / "model.safetensors")
    smaller(tensors)
    save_file(tensors | head, made / "model.safetensors", metadata={"format": "pt"})
    return made


def test_its_logits_are_those_of_its_definition(truth: Truth, model_dir: Path) -> None:
    driven, prompt = HandDriven(build_runner(model_dir)), random_prompt(50)
    runner = driven.runner
    decoder, told = runner.decoder, truth.logits(prompt)
    sequence = driven.add(prompt)
    got = []
    for first, last in ((0, 20), (20, 21), (21, 49)):  # a prompt, a decode, another prompt
        batch = driven.batch([data_row(sequence, first, last - first)])
        states = runner.states_of(batch)
        pool = runner.pool.layers
        hidden = decoder.hidden(batch.token_ids, batch.layout, pool, None, states)
        following = torch.tensor(prompt[first + 1 : last + 1])
        outputs = torch.arange(last - first)
        drafted = decoder.draft_hidden(hidden, following, batch.layout, pool, outputs)
        got.append(decoder.logits_of(drafted))
    assert (torch.cat(got) - told).abs().max() < 1e-4
    assert told.std() > 0.5, "the control: logits that spread"


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


@pytest.mark.parametrize(
    ("graph_tokens", "overlaps", "ranks"), [(0, False, 1), (64, True, 1), (0, True, 2)]
)
def test_its_drafts_are_those_of_its_definition_and_change_no_answer(
    truth: Truth, model_dir: Path, plain_dir: Path, *, graph_tokens: int, overlaps: bool, ranks: int
) -> None:
    """Also where the prompt's beginning is cached, with the head's KV of it, and on two ranks."""
    bounds = Bounds(64, 16, 24, 8, overlap_scheduling=overlaps, graph_tokens=graph_tokens)
    prompt, drafting = random_prompt(45), HeadAlone()
    plain = RealEngine(str(plain_dir), bounds)
    engine = RealEngine(str(model_dir), replace(bounds, ranks=ranks), drafting=drafting)
    for name in "ab":
        drafting.drafted.clear()
        for one in (plain, engine):
            one.submit(name, prompt, GREEDY, namespace=NAMESPACE)
            one.run()
        answer = engine.tokens(name)
        assert answer == plain.tokens(name)
        assert engine.finished(name).reused.tokens == plain.finished(name).reused.tokens
        assert len(drafting.drafted) > 10
        for known, token_ids in list(drafting.drafted.items())[::3]:
            expected = truth.drafts([*prompt, *answer][:known], len(token_ids))
            assert list(token_ids) == expected, known
        assert max(map(len, drafting.drafted.values())) == 1 + FURTHER
        prompt = [*prompt, *answer, 7, 9]
    assert engine.finished("b").reused.tokens > 64
    said = [engine.finished(name).drafts["mtp"] for name in "ab"]
    drafted, accepted = (sum(counts) for counts in zip(*said, strict=True))
    assert drafted == engine.core.stats().drafts["mtp"].drafted_tokens
    assert drafted - 10 > accepted > 10, (drafted, accepted)
    engine.expect_nothing_left()
    engine.close()


def test_a_server_drafts_from_it_as_long_as_that_pays(model_dir: Path, plain_dir: Path) -> None:
    bounds = Bounds(64, 16, 24, 8, overlap_scheduling=True, drafts=True)
    engine, plain = (RealEngine(str(one), bounds) for one in (model_dir, plain_dir))
    for one in (engine, plain):
        one.submit("a", random_prompt(45), GREEDY, namespace=NAMESPACE)
        one.run()
    assert engine.tokens("a") == plain.tokens("a")
    assert engine.core.stats().drafts["mtp"].drafted_tokens > 0
    assert "mtp" not in plain.core.stats().drafts


def test_it_is_left_in_the_files_where_nothing_is_drafted(model_dir: Path) -> None:
    def without(config: EngineConfig) -> EngineConfig:
        return structs.replace(config, steps=structs.replace(config.steps, drafts="off"))

    layers = [
        RealEngine(str(model_dir), Bounds(64, 16, 24, 8), over=over).pool.layout.num_layers
        for over in (as_it_is, without)
    ]
    assert layers == [3, 2]


def test_ranks_leave_out_a_sample_together(model_dir: Path) -> None:
    """The head keeps keys of such a step too, and its ranks add up what they put out."""
    bounds = replace(Bounds(64, 16, 24, 8), ranks=2)
    with closing(RealEngine(str(model_dir), bounds)) as engine:
        assert isinstance(engine.ranks, ThreadRanks)
        row = Row(1, 0, DECODE, 0, 1, True, False, bytes(4), 0, bytes(4))
        assert engine.runner.launch_forward(Step((row,))).skip().collect() == []
        engine.ranks.catch_up()
