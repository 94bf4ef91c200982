"""The loading of a model checkpoint's safetensors into a decoder's parameters.

Each tensor is read from the file directly to the device, into the decoder's joined matrices. The
host never holds a copy of the model, except for offloaded layers. Tensors that are not needed for
text are not loaded, and their names are logged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.models.checkpoints.shard_slices import ShardSlices
from engine.models.checkpoints.weight_files import GGUF_FILE, TIED_HEAD, tensor_bytes, weight_files
from engine.models.config import ModelConfig
from engine.models.errors import CheckpointError
from engine.models.gguf.tensors import GgufFile
from engine.models.modules import CheckpointTensor
from engine.models.names import CheckpointNames, Surplus
from engine.models.parameters import (
    LayerHomes,
    Parameters,
    checkpoint_tensors,
    empty_parameters,
    leave_biases_to_the_first,
)
from engine.models.rank_group import RankGroup
from engine.models.weight_formats.scales import ScaleChecks
from storage.layouts.stage import Stage

WEIGHT_DTYPES = frozenset((torch.float32, torch.bfloat16, torch.float16, torch.float64))

_log = logging.getLogger(__name__)


@torch.inference_mode()
def load_parameters(
    model_dir: Path,
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    group: RankGroup | None = None,
    homes: LayerHomes | None = None,
    stage: Stage | None = None,
) -> Parameters:
    """Load the weights of `model_dir` to `device` as `dtype`.

    Load all weights, or those of one stage, or the part of this rank in a `group`. Offloaded layers
    are filled on the device first, so that offloading does not change values. Raises ModelError.
    """
    files = weight_files(model_dir)
    parameters = empty_parameters(config, dtype, device, group, homes, stage)
    slices = _slices(config, dtype, parameters, group, is_all=group is None and stage is None)
    loading = _Loading(parameters, config.names, slices)
    for path in files:
        loading.read_file(path, device)
    loading.finish()
    leave_biases_to_the_first(parameters, group)
    return parameters


def _slices(
    config: ModelConfig,
    dtype: torch.dtype,
    parameters: Parameters,
    group: RankGroup | None,
    *,
    is_all: bool,
) -> ShardSlices:
    parts = checkpoint_tensors(parameters)
    if is_all:
        return ShardSlices(parts, parts, 0, 1)
    whole = checkpoint_tensors(empty_parameters(config, dtype, torch.device("meta")))
    rank, num_ranks = (0, 1) if group is None else (group.rank, group.num_ranks)
    return ShardSlices(whole, parts, rank, num_ranks)


class _Loading:
    """The loading of files one after another, with the tensors that are not filled yet."""

    def __init__(self, parameters: Parameters, names: CheckpointNames, slices: ShardSlices) -> None:
        self._names = names
        self._slices = slices
        self._surplus = Surplus()
        self._scales = ScaleChecks()
        self._unfilled = checkpoint_tensors(parameters)
        self._wanted = frozenset(self._unfilled)
        self._embedding = parameters.embedding
        self._tied = parameters.head is parameters.embedding
        self._spare_head: Tensor | None = None

    def read_file(self, path: Path, device: torch.device) -> None:
        try:
            with _opened(path, device) as file:
                sizes = file.sizes() if isinstance(file, GgufFile) else tensor_bytes(path)
                for name in file.keys():  # noqa: SIM118 - not a mapping
                    own = self._names.own(name)
                    parts = self._names.parts(own) or (own,)
                    if not any(map(self._slices.has, parts)):
                        continue
                    is_wanted = own in self._wanted or parts[0] in self._wanted
                    kind = None if is_wanted else self._names.surplus_kind(own)
                    if kind is None:
                        self._fill_all(own, self._slices.read(file, name, own))
                    else:
                        self._surplus.add(kind, sizes[name])
            self._scales.check()
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path}: {error}") from error

    def _fill_all(self, name: str, value: Tensor) -> None:
        parts = self._names.parts(name)
        if not parts or any(part not in self._wanted for part in parts):
            self._fill(name, value)
            return
        for part, one in zip(parts, self._divided(name, value, parts), strict=True):
            self._fill(part, self._slices.cut(part, one))

    def _divided(self, name: str, value: Tensor, parts: Sequence[str]) -> Sequence[Tensor]:
        """Divide a tensor by rows among its matrices.

        A single number, or a tensor that is not divided by rows, goes to all of them.
        """
        if self._names.experts(name):
            return self._unstacked(name, value, len(parts))
        dim = self._slices.shard_dim(parts[0])
        if dim is None or value.numel() == 1:
            return (value,) * len(parts)
        sizes = [self._slices.size_of_whole(part, dim) for part in parts]
        if value.dim() <= dim or value.shape[dim] != sum(sizes):
            what = f"the config gives {sum(sizes)} in dimension {dim}"
            raise CheckpointError(f"{name} is {tuple(value.shape)}, {what}")
        return tuple(value.split(sizes, dim))  # type: ignore[no-untyped-call]

    def _unstacked(self, name: str, value: Tensor, count: int) -> Sequence[Tensor]:
        rows = value.shape[:2].numel()
        if value.dim() < 2 or count % len(value) or rows % count:
            raise CheckpointError(f"{name} is {tuple(value.shape)}, of {count} matrices of experts")
        return value.flatten(0, 1).chunk(count)

    def _fill(self, name: str, value: Tensor) -> None:
        if name in self._wanted and name not in self._unfilled:
            raise CheckpointError(f"{name} is in the files twice")
        wanted = self._unfilled.pop(name, None)
        if wanted is not None and wanted.stored_shape is not None:
            _check_shape(name, value, wanted.stored_shape)
        if wanted is not None and wanted.is_scale:
            self._scales.add(name, value)
        if wanted is not None and wanted.convert is not None:
            value = _converted(wanted.convert, value, name)
        if not _is_accepted(value, wanted):
            raise CheckpointError(f"{name} is {value.dtype}, which its weight format has not")
        if self._tied and name == TIED_HEAD:
            self._spare_head = value
            return
        if wanted is None:
            raise CheckpointError(f"{name} has no place in this model")
        _check_shape(name, value, wanted.view.shape)
        wanted.view.copy_(value)

    def finish(self) -> None:
        if missing := sorted(name for name, one in self._unfilled.items() if one.required):
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise CheckpointError(f"{missing[0]}{more}: in no file")
        if self._spare_head is not None:
            self._check_spare_head(self._spare_head)
        if left := str(self._surplus):
            _log.info("%s", left)

    def _check_spare_head(self, head: Tensor) -> None:
        """Reject a separate output head.

        The head of a tied model checkpoint may only be a copy of the embedding.

        Only a stage that has the embedding can check this.
        """
        if len(self._embedding) and not torch.equal(
            head.to(self._embedding.dtype), self._embedding
        ):
            raise CheckpointError(f"{TIED_HEAD} differs from the embedding that it is tied to")


def _opened(path: Path, device: torch.device) -> AbstractContextManager[Any]:
    if path.name == GGUF_FILE:
        return GgufFile(path, device)
    opened: AbstractContextManager[Any] = safe_open(str(path), framework="pt", device=str(device))
    return opened


def _converted(convert: Callable[[Tensor], Tensor], value: Tensor, name: str) -> Tensor:
    try:
        return convert(value)
    except CheckpointError as error:
        raise CheckpointError(f"{name}: {error}") from error


def _check_shape(name: str, value: Tensor, wanted: Sequence[int]) -> None:
    if tuple(value.shape) != tuple(wanted):
        raise CheckpointError(f"{name} is {tuple(value.shape)}, the config gives {tuple(wanted)}")


def _is_accepted(value: Tensor, wanted: CheckpointTensor | None) -> bool:
    """Return whether a value can be converted to the dtype of the tensor `wanted`.

    Packed values must already have this dtype.
    """
    if wanted is None or wanted.view.dtype in WEIGHT_DTYPES:
        return value.dtype in WEIGHT_DTYPES
    return value.dtype == wanted.view.dtype
