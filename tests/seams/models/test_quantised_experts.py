"""Adapters of experts over HTTP, on quantised models, compared with PEFT on dequantised weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from kernels.linear.fp8_matrix import Fp8Matrix, scaled_to_e4m3
from tests.doubles.engine.tiny_model import TEMPLATE, write_tiny_model
from tests.engine.models.adapters.test_experts import BOTH, QUERIES
from tests.engine.models.weight_formats.test_int4_experts import recipe
from tests.engine.rigs.checkpoints import Checkpoint, make_checkpoint
from tests.engine.rigs.files.adapters import PeftAdapter, make_adapter
from tests.engine.rigs.files.int4_checkpoints import KINDS, is_quantised, make_int4
from tests.engine.rigs.hand_driven import random_prompt
from tests.seams.support.server import Server, running_server

PROMPT = random_prompt(40)
TOKENS = 12


@dataclass(frozen=True)
class Base:
    """A quantised model's directory and settings; `truth` has the dequantised weights."""

    model_dir: Path
    truth: Checkpoint
    settings: dict[str, str]
    tolerance: float  # maximum allowed mean difference of log-probabilities


def in_int4(directory: Path) -> Base:
    made = make_int4(KINDS["packed"], directory, recipe())
    return Base(made.int4.model_dir, made.int4, {}, 1e-4)


def in_fp8(directory: Path) -> Base:
    """Make a model that is quantised when loaded. The engine also rounds inputs of GEMMs."""
    made = make_checkpoint(recipe(), directory / "plain")
    with torch.no_grad():
        for name, weight in made.truth.named_parameters():
            if is_quantised(f"{name.removesuffix('.weight')}.weight"):
                values, scales = scaled_to_e4m3(weight.flatten(0, -2))
                matrix = Fp8Matrix(values, scales, by_block=False)
                weight.copy_(matrix.dequantised().view(weight.shape))
    return Base(made.model_dir, made, {"RATOON_QUANTIZATION": "fp8"}, 0.25)


@pytest.mark.parametrize("base_of", [in_int4, in_fp8])
def test_answers_are_those_of_peft(base_of: Callable[[Path], Base], tmp_path: Path) -> None:
    base = base_of(tmp_path)
    write_tiny_model(base.model_dir, TEMPLATE)
    folder = tmp_path / "adapters" / "one"
    adapter = make_adapter(base.truth, folder, target_modules=QUERIES, target_parameters=BOTH)
    settings = {
        "RATOON_MODEL": str(base.model_dir),
        "RATOON_DTYPE": "float32",
        "RATOON_ADAPTERS_DIR": str(tmp_path / "adapters"),
        "RATOON_ADAPTER_EXPERTS": "true",
        **base.settings,
    }
    with running_server(tmp_path / "data", settings) as server:
        load(server, "one")
        ids, given = answer(server, "one")
        assert difference(ids, given, adapter) < base.tolerance
        assert difference(ids, given, base.truth) > 1.0, "the control"
        ids, given = answer(server, base.model_dir.name)
        assert difference(ids, given, base.truth) < base.tolerance


def load(server: Server, path: str) -> None:
    with server.client(server.admin_key) as operator:
        [tenant, *_] = operator.get("/admin/tenants").json()["tenants"]
        made = operator.post(
            f"/admin/tenants/{tenant['id']}/adapters", json={"name": "one", "path": path}
        )
        assert made.status_code == 201, made.text


def answer(server: Server, model: str) -> tuple[list[int], torch.Tensor]:
    """Return the tokens of a greedy answer and their log-probabilities."""
    body = {"model": model, "prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0}
    more = {"logprobs": 1, "return_token_ids": True, "ignore_eos": True}
    with server.client() as client:
        found = client.post("/v1/completions", json=body | more)
    assert found.status_code == 200, found.text
    [choice] = found.json()["choices"]
    return choice["token_ids"], torch.tensor(choice["logprobs"]["token_logprobs"])


def difference(ids: list[int], given: torch.Tensor, truth: Checkpoint | PeftAdapter) -> float:
    """Return the mean difference of log-probabilities from those of `transformers`."""
    wanted = truth.logits([*PROMPT, *ids])[len(PROMPT) - 1 : -1].log_softmax(-1)
    return float((wanted[range(TOKENS), ids] - given).abs().mean())
