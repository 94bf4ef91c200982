"""Reads a checkpoint's safetensors into a decoder's parameters.

Tensor by tensor, from the file straight to the device, into the merged matrices: the host never
holds a copy of the whole model. Pickled weights are never opened.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.models.config import ModelConfig
from engine.models.errors import CheckpointError
from engine.models.modules import CheckpointTensor
from engine.models.parameters import Parameters, checkpoint_tensors, empty_parameters

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
WEIGHT_DTYPES = frozenset((torch.float32, torch.bfloat16, torch.float16, torch.float64))
TIED_HEAD = "lm_head.weight"
# Some checkpoints keep the rotary frequencies, which the config gives anyway.
DERIVED_SUFFIX = "rotary_emb.inv_freq"


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def weight_files(model_dir: Path) -> list[Path]:
    """The safetensors of a checkpoint, in order of name; raises CheckpointError."""
    if (model_dir / SINGLE_FILE).exists():
        return [model_dir / SINGLE_FILE]
    if (model_dir / INDEX_FILE).exists():
        return _indexed_files(model_dir)
    if any(model_dir.glob("*.bin")) or any(model_dir.glob("*.pt*")):
        raise CheckpointError(f"{model_dir} has only pickled weights; convert them to safetensors")
    raise CheckpointError(f"{model_dir} has neither {SINGLE_FILE} nor {INDEX_FILE}")


def _indexed_files(model_dir: Path) -> list[Path]:
    path = model_dir / INDEX_FILE
    try:
        index = msgspec.json.decode(path.read_bytes(), type=_Index)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: {error}") from error
    names = sorted(set(index.weight_map.values()))
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise CheckpointError(f"{path} points to {name!r}, which is no file beside it")
        if not (model_dir / name).exists():
            raise CheckpointError(f"{path} points to {name}, which is not there")
    return [model_dir / name for name in names]


@torch.inference_mode()
def load_parameters(
    model_dir: Path, config: ModelConfig, dtype: torch.dtype, device: torch.device
) -> Parameters:
    """Read all weights of `model_dir` onto `device` as `dtype`; raises CheckpointError."""
    files = weight_files(model_dir)
    parameters = empty_parameters(config, dtype, device)
    loading = _Loading(parameters)
    for path in files:
        loading.read_file(path, device)
    loading.finish()
    return parameters


class _Loading:
    """What is still to be filled while the files are read one after the other."""

    def __init__(self, parameters: Parameters) -> None:
        self._unfilled = checkpoint_tensors(parameters)
        self._embedding = parameters.embedding
        self._tied = parameters.head is parameters.embedding
        self._spare_head: Tensor | None = None

    def read_file(self, path: Path, device: torch.device) -> None:
        """Fill what `path` has."""
        try:
            with safe_open(str(path), framework="pt", device=str(device)) as file:
                for name in file.keys():  # noqa: SIM118 - not a mapping
                    if not name.endswith(DERIVED_SUFFIX):
                        self._fill(name, file.get_tensor(name))
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path}: {error}") from error

    def _fill(self, name: str, value: Tensor) -> None:
        wanted = self._unfilled.pop(name, None)
        if wanted is not None and wanted.convert is not None:
            value = wanted.convert(value)
        if not _is_accepted(value, wanted):
            raise CheckpointError(f"{name} is {value.dtype}, which its weight format has not")
        if self._tied and name == TIED_HEAD:
            self._spare_head = value
            return
        if wanted is None:
            raise CheckpointError(f"{name} has no place in this model")
        target = wanted.view
        if target.shape != value.shape:
            raise CheckpointError(
                f"{name} is {tuple(value.shape)}, the config gives {tuple(target.shape)}"
            )
        target.copy_(value)

    def finish(self) -> None:
        """Check that nothing is missing."""
        if self._unfilled:
            names = sorted(self._unfilled)
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise CheckpointError(f"{names[0]}{more}: in no file")
        if self._spare_head is not None:
            self._check_spare_head(self._spare_head)

    def _check_spare_head(self, head: Tensor) -> None:
        """A tied checkpoint may repeat the embedding as its head, but not have another head."""
        if not torch.equal(head.to(self._embedding.dtype), self._embedding):
            raise CheckpointError(f"{TIED_HEAD} differs from the embedding that it is tied to")


def _is_accepted(value: Tensor, wanted: CheckpointTensor | None) -> bool:
    """Numbers of any width are cast to each other; what is packed must be of the very dtype."""
    if wanted is None or wanted.view.dtype in WEIGHT_DTYPES:
        return value.dtype in WEIGHT_DTYPES
    return value.dtype == wanted.view.dtype
