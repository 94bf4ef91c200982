"""The weight files of a model directory, and the errors for formats that are not served.

    model.safetensors | model.safetensors.index.json | model-00001-of-00003.safetensors ... |
    the only safetensors file, whatever its name | model.gguf

This module does not import torch, because the command line uses it before the engine starts.

Elsewhere: the use of tensors (`names`).
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from engine.models.errors import CheckpointError, ModelError, UnsupportedModel
from engine.models.lfs_pointers import WHAT, is_pointer
from engine.models.model_files import decode, read_file

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
GGUF_FILE = "model.gguf"  # in one folder with the JSON files that describe it (`cli.gguf`)
TIED_HEAD = "lm_head.weight"
# Name of the embedding if a decoder was saved without its head.
_DECODER_ALONE = "embed_tokens.weight"
_SHARD = re.compile(r"(?P<stem>.+)-\d+-of-(?P<count>\d+)\.safetensors")
_SERVED = "served are safetensors with Hugging Face's names"
# The errors for directories without safetensors, by a pattern of file names.
_OTHERS: tuple[tuple[str, type[ModelError], str], ...] = (
    ("adapter_config.json", UnsupportedModel, "a LoRA adapter (--adapters-dir loads it)"),
    ("*.gguf", UnsupportedModel, "weights in GGUF (--model may name the file)"),
    ("consolidated*", UnsupportedModel, "weights with their maker's own names"),
    ("*.bin", CheckpointError, "pickled weights, which are never opened,"),
    ("*.pt*", CheckpointError, "pickled weights, which are never opened,"),
    ("*.npz", UnsupportedModel, "weights of MLX"),
    ("*.msgpack", UnsupportedModel, "weights of Flax"),
    ("*.h5", UnsupportedModel, "weights of TensorFlow"),
)


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


class _Entry(msgspec.Struct):
    data_offsets: tuple[int, int]


def weight_files(model_dir: Path) -> list[Path]:
    """List the safetensors files of a model checkpoint, sorted by name.

    Raises CheckpointError if files are missing, UnsupportedModel for weights in another format.
    """
    files = _named_files(model_dir)
    for path in files:
        if path.exists() and not path.is_file():
            raise CheckpointError(f"{path} is no regular file")
        if is_pointer(path):
            raise CheckpointError(f"{path} is {WHAT}")
    return files


def _named_files(model_dir: Path) -> list[Path]:
    if (model_dir / SINGLE_FILE).exists():
        return [model_dir / SINGLE_FILE]
    if (model_dir / INDEX_FILE).exists():
        return _indexed_files(model_dir)
    if (model_dir / GGUF_FILE).exists():
        return [model_dir / GGUF_FILE]
    refuse_other_weights(model_dir)
    found = sorted(model_dir.glob("*.safetensors"))
    if shards := [path for path in found if _SHARD.fullmatch(path.name)]:
        return _whole(model_dir, shards)
    if len(found) == 1:
        return found
    if found:
        names = ", ".join(path.name for path in found)
        raise CheckpointError(f"{model_dir} has {names}, and no {INDEX_FILE} that says which count")
    raise CheckpointError(f"{model_dir} has neither {SINGLE_FILE} nor {INDEX_FILE}")


def refuse_other_weights(model_dir: Path) -> None:
    """Raise ModelError for a directory with weights in a format that is not served."""
    ours = any(not path.name.startswith(("adapter", "consolidated")) for path in _ours(model_dir))
    if ours:
        return
    for pattern, error, what in _OTHERS:
        if found := sorted(path.name for path in model_dir.glob(pattern)):
            raise error(f"{model_dir} has only {what} in {found[0]}; {_SERVED}")


def _ours(model_dir: Path) -> list[Path]:
    return [*model_dir.glob("*.safetensors"), *model_dir.glob(INDEX_FILE)]


def _whole(model_dir: Path, shards: list[Path]) -> list[Path]:
    matches = [_SHARD.fullmatch(path.name) for path in shards]
    kinds = {(match["stem"], int(match["count"])) for match in matches if match}
    if len(kinds) > 1:
        names = ", ".join(f"{stem}-...-of-{count}" for stem, count in sorted(kinds))
        raise CheckpointError(f"{model_dir} has shards of several checkpoints: {names}")
    [(_, count)] = kinds
    if len(shards) != count:
        raise CheckpointError(
            f"{model_dir} has {len(shards)} of {count} shards: {shards[0].name}..."
        )
    return shards


def _indexed_files(model_dir: Path) -> list[Path]:
    path = model_dir / INDEX_FILE
    try:
        index = decode(read_file(path), _Index)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: {error}") from error
    names = sorted(set(index.weight_map.values()))
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise CheckpointError(f"{path} points to {name!r}, which is no file beside it")
        if not (model_dir / name).exists():
            raise CheckpointError(f"{path} points to {name}, which is not there")
    return [model_dir / name for name in names]


def lacks_head(model_dir: Path) -> bool:
    """Return whether the files have a decoder without an output head (an embedding model).

    Returns False without weights, and for GGUF weights. Raises the errors of `weight_files`.
    """
    if not any(model_dir.glob("*.safetensors")):
        return False
    names = {name for path in weight_files(model_dir) for name in tensor_bytes(path)}
    return _DECODER_ALONE in names and TIED_HEAD not in names


def stored_names(model_dir: Path) -> list[str]:
    """List the tensors' names in safetensors files, or nothing for a GGUF file.

    Raises the errors of `weight_files`.
    """
    files = weight_files(model_dir)
    if files[0].name == GGUF_FILE:
        return []
    return [name for path in files for name in tensor_bytes(path)]


def tensor_bytes(path: Path) -> dict[str, int]:
    """Read the number of bytes of each tensor from a safetensors file."""
    with path.open("rb") as file:
        header = msgspec.json.decode(file.read(int.from_bytes(file.read(8), "little")))
    header.pop("__metadata__", None)
    entries = msgspec.convert(header, dict[str, _Entry])
    return {name: entry.data_offsets[1] - entry.data_offsets[0] for name, entry in entries.items()}
