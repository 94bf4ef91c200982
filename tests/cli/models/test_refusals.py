"""A model that cannot be served ends the start with a one-line reason, and an exit status of its
own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from cli.errors import BadSetting, ModelRefused
from cli.models.machine import Machine
from cli.models.model_check import checked_source
from cli.models.model_source import ModelSource
from cli.options.engine_options import ENGINE_DEFAULTS
from engine.config import EngineConfig, LoadFormat
from engine.models.errors import WrongSetting
from engine.models.served.reading import read_model_config
from engine.models.stages import layer_bytes
from engine.offload.placement import GIB, place
from engine.startup.decoder import weight_sizes
from tests.cli.console import Console
from tests.doubles.engine.tiny_model import RUNNABLE, write_tiny_model

Spoil = Callable[[Path], object]
MISTRAL = {"architectures": ["MistralForCausalLM"]}
QWEN3 = {"architectures": ["Qwen3ForCausalLM"]}


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """Make a model directory whose files pass every check."""
    directory = write_tiny_model(tmp_path / "tiny", config=RUNNABLE)
    (directory / "model.safetensors").touch()
    return directory


def config(**fields: Any) -> Spoil:
    """Change fields of config.json; None removes a field."""
    changed = {name: value for name, value in {**RUNNABLE, **fields}.items() if value is not None}
    return lambda directory: (directory / "config.json").write_text(json.dumps(changed))


def weights_only_in(name: str) -> Spoil:
    """Replace the weights by a file named `name`."""

    def spoil(directory: Path) -> None:
        (directory / "model.safetensors").unlink()
        (directory / name).touch()

    return spoil


def without(*names: str, beside: str | None = None) -> Spoil:
    """Remove the files `names`, and add the file `beside`."""

    def spoil(directory: Path) -> None:
        for name in names:
            (directory / name).unlink()
        if beside is not None:
            (directory / beside).touch()

    return spoil


REFUSED: Mapping[str, tuple[Spoil, str]] = {
    "another architecture": (
        config(architectures=["GPT2LMHeadModel"]),
        "architectures ['GPT2LMHeadModel']: served are CwmForCausalLM, ",
    ),
    "an encoder": (config(architectures=["BertModel"]), "architectures ['BertModel']: served are"),
    "one that sees": (
        config(architectures=["Qwen2_5_VLForConditionalGeneration"]),
        "architectures ['Qwen2_5_VLForConditionalGeneration']: served are",
    ),
    "two architectures": (config(architectures=["A", "B"]), "architectures ['A', 'B']: served are"),
    "no architecture": (config(architectures=None), "missing required field `architectures`"),
    "quantised another way": (
        config(quantization_config={"quant_method": "hqq"}),
        "quantization_config: quant_method 'hqq'; served are plain weights",
    ),
    "quantised by ModelOpt": (
        lambda directory: (directory / "hf_quant_config.json").write_text('{"quantization": {}}'),
        "hf_quant_config.json: weights quantised by ModelOpt; served are plain weights, awq",
    ),
    "integers in another order": (
        config(
            quantization_config={
                "quant_method": "gptq",
                "bits": 4,
                "group_size": 128,
                "desc_act": True,
            }
        ),
        "quantization_config.desc_act True: served is false, or true with static_groups",
    ),
    "columns that are no whole runs": (
        config(quantization_config={"quant_method": "awq", "bits": 4, "group_size": 32}),
        "quantization_config: model.layers.0.self_attn.q_proj has 64 columns: in int4 served are",
    ),
    "another compressed-tensors": (
        config(quantization_config={"quant_method": "compressed-tensors", "format": "marlin-24"}),
        "quantization_config.format 'marlin-24': served is float-quantized or pack-quantized",
    ),
    "quantised by MLX": (
        config(quantization={"group_size": 64, "bits": 4}),
        "quantization: weights quantised by MLX; served are plain weights",
    ),
    "another activation": (config(hidden_act="gelu"), "hidden_act 'gelu': only 'silu' is served"),
    "another rope": (
        config(rope_scaling={"rope_type": "spiral", "factor": 4.0}),
        "rope_type 'spiral': served are default, linear",
    ),
    "odd heads": (config(head_dim=15), "head_dim 15 is odd"),
    "wide heads": (config(head_dim=4096), "head_dim 4096: head dim 4096 is not an even number in"),
    "too many query heads": (
        config(num_attention_heads=64, num_key_value_heads=1, head_dim=16),
        "num_attention_heads 64, num_key_value_heads 1, head_dim 16: 64 query heads",
    ),
    "uneven groups": (
        config(num_key_value_heads=3),
        "num_attention_heads 4 is no multiple of num_key_value_heads 3",
    ),
    "another dtype": (
        config(torch_dtype="float8_e4m3fn"),
        "dtype 'float8_e4m3fn': served are float32, bfloat16, float16",
    ),
    "a wrong type": (
        config(hidden_size="64"),
        "config.json: Expected `int`, got `str` - at `$.hid",
    ),
    "no vocabulary": (config(vocab_size=None), "missing required field `vocab_size`"),
    "no JSON": (lambda directory: (directory / "config.json").write_text("{"), "config.json: "),
    "GGUF": (
        weights_only_in("q4.gguf"),
        "q4.gguf is no whole GGUF file",
    ),
    "pickles": (weights_only_in("pytorch_model.bin"), "only pickled weights, which are never open"),
    "its maker's names": (
        weights_only_in("consolidated.safetensors"),
        "only weights with their maker's own names in consolidated.safetensors; served are",
    ),
    "an adapter": (
        weights_only_in("adapter_config.json"),
        "only a LoRA adapter (--adapters-dir",
    ),
    "an adapter alone": (
        without("config.json", "model.safetensors", beside="adapter_config.json"),
        "only a LoRA adapter (--adapters-dir loads it) in adapter_config.json; served are",
    ),
    "GGUF alone": (
        without("config.json", "model.safetensors", beside="q4.gguf"),
        "q4.gguf is no whole GGUF file",
    ),
    "no weights": (without("model.safetensors"), "has neither model.safetensors nor model.safe"),
    "a shard of three": (
        weights_only_in("model-00001-of-00003.safetensors"),
        "has 1 of 3 shards: model-00001-of-00003.safetensors",
    ),
    "defaults that cannot be": (
        lambda directory: (directory / "generation_config.json").write_text('{"top_p": 7}'),
        "generation_config.json: Expected `float` <= 1.0 - at `$.top_p`",
    ),
}
ABSENT: Mapping[str, tuple[Spoil, str]] = {
    "no config": (without("config.json"), "has no config.json"),
    "no tokenizer": (without("tokenizer.json"), "has no tokenizer.json"),
}


@pytest.mark.parametrize(
    ("spoil", "says", "status"),
    [
        *((spoil, says, 3) for spoil, says in REFUSED.values()),
        *((spoil, says, 2) for spoil, says in ABSENT.values()),
    ],
    ids=[*REFUSED, *ABSENT],
)
def test_a_start_ends_with_one_line(
    console: Console, model_dir: Path, tmp_path: Path, spoil: Spoil, says: str, status: int
) -> None:
    assert console.type("models", str(model_dir)).status == 0, "the control"
    spoil(model_dir)
    words = ("--model", str(model_dir), "--data-dir", str(tmp_path / "data"))
    served = console.type("serve", *words)
    assert (served.status, served.out) == (status, "")
    [line] = served.err.splitlines()
    assert line.startswith("ratoon: ")
    assert says in line
    assert not (tmp_path / "data").exists(), "nothing was begun"
    asked = console.type("models", str(model_dir))
    assert (asked.status, asked.err) == (1, served.err)


@pytest.mark.parametrize("name", ["another architecture", "no weights", "GGUF"])
def test_an_engine_alone_ends_as_well(
    console: Console, model_dir: Path, tmp_path: Path, name: str
) -> None:
    spoil, says = REFUSED[name]
    spoil(model_dir)
    printed = console.type("engine", "--model", str(model_dir), "--data-dir", str(tmp_path / "d"))
    assert printed.status == 3
    assert says in printed.err
    assert printed.err.count("\n") == 1


def test_a_file_that_is_no_gguf_is_refused(console: Console, tmp_path: Path) -> None:
    file = tmp_path / "q4.gguf"
    file.write_bytes(b"no")
    printed = console.type("serve", "--model", str(file), "--data-dir", str(tmp_path / "data"))
    assert (printed.status, printed.out) == (3, "")
    assert "q4.gguf is no whole GGUF file" in printed.err


def test_of_several_gguf_files_one_is_to_be_named(console: Console, tmp_path: Path) -> None:
    for name in ("q4.gguf", "q8.gguf"):
        (tmp_path / name).touch()
    printed = console.type("models", str(tmp_path))
    assert printed.status == 1
    assert "several GGUF files; --model names one of q4.gguf, q8.gguf" in printed.err


def test_defaults_that_are_not_used_may_be_anything(model_dir: Path) -> None:
    (model_dir / "generation_config.json").write_text('{"top_p": 7}')
    assert checked_source(str(model_dir), ENGINE_DEFAULTS).directory == model_dir


def test_a_context_longer_than_the_models_is_the_flags_fault(model_dir: Path) -> None:
    flags = [ENGINE_DEFAULTS.changed(max_model_len=n) for n in (2048, 2049)]
    assert checked_source(str(model_dir), flags[0]).directory == model_dir
    with pytest.raises(BadSetting, match="--max-model-len: 2049: the model has 2048"):
        checked_source(str(model_dir), flags[1])


def test_ranks_that_do_not_divide_a_model_are_refused_by_its_field(
    console: Console, model_dir: Path, tmp_path: Path
) -> None:
    heads = RUNNABLE["num_attention_heads"]
    words = ["serve", "--model", str(model_dir), "--data-dir", str(tmp_path / "data")]
    printed = console.type(*words, "--tensor-parallel", "7")
    assert (printed.status, printed.out) == (3, "")
    assert f"tensor_parallel 7 does not divide num_attention_heads {heads}" in printed.err
    assert printed.err.count("\n") == 1
    printed = console.type(*words, "--pipeline-parallel", "8")
    layers = RUNNABLE["num_hidden_layers"]
    assert f"pipeline_parallel 8: the model has {layers} layers" in printed.err
    assert printed.err.count("\n") == 1
    two = ENGINE_DEFAULTS.changed(tensor_parallel=2, pipeline_parallel=layers)
    assert checked_source(str(model_dir), two).directory == model_dir, "the control"


def offloading(gib: float, **fields: Any) -> EngineConfig:
    return ENGINE_DEFAULTS.changed(cpu_offload_gb=gib, dtype="bfloat16", **fields)


def test_weights_in_host_memory_are_checked_before_an_engine_is_started(
    console: Console, model_dir: Path, tmp_path: Path
) -> None:
    config(num_hidden_layers=8)(model_dir)
    model = read_model_config(model_dir)
    layers = layer_bytes(model.layers, model.weight_format, "bfloat16")
    fits = sum(layers) / GIB
    source, roomy = str(model_dir), Machine(2, 1 << 40, ("0",))
    assert checked_source(source, offloading(fits), of=roomy).directory == model_dir, "the control"
    with pytest.raises(BadSetting, match=r"--cpu-offload-gb: 1: the layers have .* GiB of weights"):
        checked_source(source, offloading(1.0), of=roomy)
    with pytest.raises(BadSetting, match="so 1 in host memory free none"):
        checked_source(source, offloading(fits / 8), of=roomy)
    with pytest.raises(
        BadSetting, match=r"so \d in host memory free none"
    ):  # each of the two stages has some of these layers
        checked_source(source, offloading(fits / 4, pipeline_parallel=2), of=roomy)
    poor = Machine(2, sum(layers) - 1, ("0",))
    with pytest.raises(BadSetting, match="would be in host memory, of which"):
        checked_source(source, offloading(fits), of=poor)
    assert checked_source(source, offloading(fits)).directory == model_dir, "an engine elsewhere"
    flags = ["--model", source, "--data-dir", str(tmp_path / "d"), "--cpu-offload-gb", "1"]
    for command in ("serve", "engine"):
        printed = console.type(command, *flags)
        assert (printed.status, printed.err.count("\n")) == (2, 1)
        assert "--cpu-offload-gb: 1: the layers have" in printed.err


def test_what_is_said_of_weights_in_host_memory_is_what_the_engine_would_say(
    model_dir: Path,
) -> None:
    config(num_hidden_layers=8)(model_dir)
    model = read_model_config(model_dir)
    whole = weight_sizes(model, torch.float32).layers
    for gib in (0.9 * sum(whole) / GIB, sum(whole) / GIB, 1.5 * max(whole) / GIB, 1.0):
        asked = ENGINE_DEFAULTS.changed(cpu_offload_gb=gib, device="cpu")
        try:
            place(whole, gib)
        except WrongSetting:
            with pytest.raises(BadSetting, match="--cpu-offload-gb"):
                checked_source(str(model_dir), asked)
        else:
            checked_source(str(model_dir), asked)


def test_a_hub_models_weights_are_not_downloaded_to_be_refused(model_dir: Path) -> None:
    asked: list[LoadFormat] = []

    def resolved(_: str, load_format: LoadFormat) -> ModelSource:
        asked.append(load_format)
        return ModelSource(model_dir, "owner/name")

    assert checked_source("owner/name", ENGINE_DEFAULTS, resolved).name == "owner/name"
    assert asked == ["dummy", "safetensors"]
    asked.clear()
    REFUSED["another architecture"][0](model_dir)
    with pytest.raises(ModelRefused, match=r"owner/name cannot be served: architectures \['GPT2"):
        checked_source("owner/name", ENGINE_DEFAULTS, resolved)
    assert asked == ["dummy"]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (
            ["--advertise", "tcp://10.0.0.7:7300"],
            "--advertise: is for an engine that is registered",
        ),
        (["--role", "prefill"], "--role: prefill needs --exchange"),
    ],
)
def test_flags_of_an_engine_that_would_do_nothing_are_refused(
    console: Console, model_dir: Path, tmp_path: Path, flags: list[str], says: str
) -> None:
    where = ["--model", str(model_dir), "--data-dir", str(tmp_path / "d")]
    printed = console.type("engine", *where, *flags)
    assert (printed.status, printed.err.count("\n")) == (2, 1)
    assert says in printed.err
