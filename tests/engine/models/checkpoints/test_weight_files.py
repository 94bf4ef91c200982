"""The weight files that are read without an index, and the file formats that are refused by
name.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from engine.models.checkpoints.weight_files import refuse_other_weights, tensor_bytes, weight_files
from engine.models.config import read_json
from engine.models.errors import BadConfig, CheckpointError, ModelError, UnsupportedModel

SHARDS = [f"model-0000{shard}-of-00003.safetensors" for shard in (1, 2, 3)]


class Anything(msgspec.Struct):
    """Any JSON object: msgspec ignores its fields."""


def found(directory: Path, *names: str) -> list[str]:
    """Create these files in a directory; return those that the loader would read."""
    for name in names:
        (directory / name).touch()
    return [path.name for path in weight_files(directory)]


def test_shards_without_an_index_are_read_in_order(tmp_path: Path) -> None:
    assert found(tmp_path, *reversed(SHARDS), "consolidated.safetensors") == SHARDS


def test_a_shard_that_is_absent_is_missed_without_an_index_too(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has 2 of 3 shards: model-00001-of-00003"):
        found(tmp_path, *SHARDS[::2])
    assert found(tmp_path, *SHARDS) == SHARDS


def test_shards_of_two_checkpoints_are_not_mixed(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="shards of several checkpoints"):
        found(tmp_path, *SHARDS, "other-00001-of-00001.safetensors")


def test_a_single_file_may_have_another_name(tmp_path: Path) -> None:
    assert found(tmp_path, "weights.safetensors") == ["weights.safetensors"]
    with pytest.raises(CheckpointError, match=r"more\.safetensors, weights\.safetensors, and no"):
        found(tmp_path, "more.safetensors")
    assert found(tmp_path, "model.safetensors") == ["model.safetensors"]


@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        ("consolidated.safetensors", UnsupportedModel, "their maker's own names"),
        ("consolidated.00.pth", UnsupportedModel, "their maker's own names"),
        ("model-q4.gguf", UnsupportedModel, "weights in GGUF"),
        ("adapter_config.json", UnsupportedModel, "a LoRA adapter"),
        ("pytorch_model.bin", CheckpointError, "pickled weights"),
        ("model.pth", CheckpointError, "pickled weights"),
        ("weights.npz", UnsupportedModel, "MLX"),
        ("flax_model.msgpack", UnsupportedModel, "Flax"),
        ("tf_model.h5", UnsupportedModel, "TensorFlow"),
    ],
)
def test_other_weights_are_refused_by_their_file(
    tmp_path: Path, name: str, kind: type[ModelError], says: str
) -> None:
    with pytest.raises(kind, match=f"only .*{says}.* in {name}; served are safetensors"):
        found(tmp_path, name)
    assert found(tmp_path, "model.safetensors") == ["model.safetensors"], "beside it they are read"
    refuse_other_weights(tmp_path)


def test_an_adapters_own_file_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="LoRA"):
        found(tmp_path, "adapter_config.json", "adapter_model.safetensors")


def test_a_pointer_of_git_lfs_is_no_file_of_weights(tmp_path: Path) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n"
    path = tmp_path / "model.safetensors"
    path.write_text(pointer)
    with pytest.raises(CheckpointError, match=r"model.safetensors is a pointer of Git LFS"):
        weight_files(tmp_path)
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text(pointer)
    with pytest.raises(BadConfig, match=r"tokenizer.json is a pointer of Git LFS"):
        read_json(tokenizer, Anything)
    tokenizer.write_text(pointer[1:])
    with pytest.raises(BadConfig, match="malformed"):
        read_json(tokenizer, Anything)
    path.write_text(pointer[1:])
    assert weight_files(tmp_path) == [path], "what it is instead, who opens it says"


def test_an_empty_directory_has_nothing_to_refuse(tmp_path: Path) -> None:
    refuse_other_weights(tmp_path)
    with pytest.raises(CheckpointError, match="has neither"):
        weight_files(tmp_path)


def test_bytes_are_those_of_the_header(tmp_path: Path) -> None:
    header = b'{"__metadata__":{"a":"b"},"x":{"dtype":"F8_E4M3","shape":[7],"data_offsets":[2,9]}}'
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(9))
    assert tensor_bytes(path) == {"x": 7}
