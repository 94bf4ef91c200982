"""An adapter in host memory: its checked matrices, by the decoder's names, and its digest.

    base_model.model. | model.layers.0.self_attn.q_proj | .lora_A.weight (rank, in)
                      | the checkpoint's own name       | .lora_B.weight (out, rank)

A model checkpoint may have several of the decoder's matrices as one tensor (`qkv_proj`). Each of
these matrices then gets the same A and its own rows of B. The matrices of experts are stacked
(`adapter_experts`). B is multiplied by the scale in float32.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from engine.models.adapters.adapter_config import AdapterConfig, read_adapter_config
from engine.models.adapters.adapter_experts import (
    ExpertPlace,
    ExpertsByLayer,
    Stack,
    num_numbers,
    of_layer,
    place_of,
    stack_of_all,
    stack_of_each,
    stacked,
)
from engine.models.adapters.adapter_files import WEIGHTS_FILE, AdapterFiles
from engine.models.adapters.adapter_part import AdapterPart
from engine.models.adapters.errors import AdapterRefused
from engine.models.modules import ExpertsConfig
from engine.models.names import CheckpointNames

_PREFIX = "base_model.model."
_ENDS = (".lora_A.weight", ".lora_B.weight")
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_VERSION = b"lora 1"  # to be increased if a new release computes another result from the same files

Shapes = Mapping[str, tuple[int, int]]  # name in the decoder -> (rows, columns) of the matrix
Pair = tuple[Tensor, Tensor]  # A (rank, in), and B (out, rank) times the scale


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter of one model. Adapters that compute differently have different 32-byte digests."""

    digest: bytes
    rank: int
    matrices: Mapping[str, Pair]  # this rank's part of each matrix, in host memory
    num_bytes: int  # bytes in host memory, summed over all ranks
    invocation: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class AdapterShapes:
    """The requirements on an adapter: the sizes of the model's matrices, and the maximum rank.

    `experts` are the experts that adapters may change, by layer.
    """

    shapes: Shapes
    names: CheckpointNames
    most_rank: int
    dtype: torch.dtype
    part: AdapterPart | None = None  # this rank's part of each matrix; None: all of it
    experts: ExpertsByLayer = field(default_factory=dict)

    @property
    def most_numbers(self) -> int:
        """The maximum count of numbers in an adapter's matrices."""
        plain = sum(rows + size_in for rows, size_in in self.shapes.values()) * self.most_rank
        return plain + sum(num_numbers(one, self.most_rank) for one in self.experts.values())


def adapter_digest(files: AdapterFiles) -> bytes:
    """Hash the weights and the fields of the config that are read. Raises AdapterRefused."""
    config = msgspec.msgpack.encode(read_adapter_config(files.config))
    weights = hashlib.sha256(files.weights).digest()
    return hashlib.sha256(msgspec.msgpack.encode([_VERSION, config, weights])).digest()


def read_adapter(files: AdapterFiles, fits: AdapterShapes) -> Adapter:
    """Make an adapter from its files' content. Raises AdapterRefused, whose message says why."""
    config = read_adapter_config(files.config)
    rank = max(config.rank, config.of_joined.rank)
    if rank > fits.most_rank:
        raise AdapterRefused(
            f"the adapter's rank is {rank}; this engine has room for {fits.most_rank} "
            "(adapter_rank)"
        )
    try:
        tensors = load(files.weights)
    except (SafetensorError, ValueError, KeyError) as error:
        raise AdapterRefused(f"{WEIGHTS_FILE}: {error}") from error
    if not tensors:
        raise AdapterRefused(f"{WEIGHTS_FILE} has no tensors")
    # Hashing takes as long as the rest, and lets other threads run.
    with ThreadPoolExecutor(1, thread_name_prefix="adapter-digest") as hashing:
        digest = hashing.submit(adapter_digest, files)
        matrices, num_bytes = _fitting(tensors, config, fits)
        return Adapter(digest.result(), config.rank, matrices, num_bytes, config.invocation)


def _fitting(
    tensors: Mapping[str, Tensor], config: AdapterConfig, fits: AdapterShapes
) -> tuple[dict[str, Pair], int]:
    """Return this rank's share of the checked matrices, and the bytes of all ranks' shares."""
    matrices, num_bytes, seen = dict[str, Pair](), 0, set[str]()
    for name, pair in _matrices(tensors, config, fits):
        if name in seen:
            raise AdapterRefused(f"two of the adapter's matrices change {name}")
        seen.add(name)
        if fits.part is None:
            matrices[name] = pair
            num_bytes += sum(one.nbytes for one in pair)
            continue
        num_bytes += fits.part.num_bytes(name, *pair)
        if fits.part.has(name):
            matrices[name] = fits.part.cut(name, *pair)
    return matrices, num_bytes


def _matrices(
    tensors: Mapping[str, Tensor], config: AdapterConfig, fits: AdapterShapes
) -> Iterator[tuple[str, Pair]]:
    of_each = defaultdict[tuple[str, str], dict[int, Pair]](dict)
    for name in sorted({_matrix_of(one) for one in tensors}):
        pair = [tensors.get(f"{_PREFIX}{name}{end}") for end in _ENDS]
        a, b = pair
        if a is None or b is None:
            raise AdapterRefused(f"{name} has no lora_A or no lora_B")
        own = fits.names.own(f"{name}.weight").removesuffix(".weight")
        place = place_of(own, fits.experts)
        if place is None:
            yield from _of_matrix(name, a, b, config, fits)
        elif place.matrix is None:
            for stack in stack_of_all(name, place.config, a, b):
                yield _of_stack(stack, place.config, config, fits)
        else:
            _check(name, a, b, config.rank)
            _check_sizes(name, a, b, _sizes_of(place))
            of_each[of_layer(place.config), place.matrix][place.expert] = a, b
    for (layer, matrix), pairs in of_each.items():
        experts = fits.experts[layer]
        yield _of_stack(stack_of_each(experts, matrix, pairs), experts, config, fits)


def _of_matrix(
    name: str, a: Tensor, b: Tensor, config: AdapterConfig, fits: AdapterShapes
) -> Iterator[tuple[str, Pair]]:
    targets = _targets(name, fits)
    _check(name, a, b, config.rank)
    sizes = [fits.shapes[target] for target in targets]
    _check_sizes(name, a, b, (sum(rows for rows, _ in sizes), {one for _, one in sizes}))
    kept, scaled = _scaled(name, a, b, config.scale, fits)
    parts = scaled.split([rows for rows, _ in sizes])  # type: ignore[no-untyped-call]
    for target, part in zip(targets, parts, strict=True):
        yield target, (kept, part)


def _of_stack(
    stack: Stack, experts: ExpertsConfig, config: AdapterConfig, fits: AdapterShapes
) -> tuple[str, Pair]:
    own = config.of_joined if stack.is_joined else config
    if stack.a.shape[0] != own.rank * experts.num_experts:
        raise AdapterRefused(f"{stack.name} is not of rank {own.rank}, as adapter_config.json says")
    _check_dtypes(stack.name, stack.a, stack.b)
    return stack.name, _scaled(stack.name, stack.a, stack.b, own.scale, fits)


def _scaled(name: str, a: Tensor, b: Tensor, scale: float, fits: AdapterShapes) -> Pair:
    # The product with the scale is computed in float32.
    wide = b if b.dtype is fits.dtype else b.float()
    return _kept(name, a, fits), _kept(name, wide * scale, fits)


def _sizes_of(place: ExpertPlace) -> tuple[int, set[int]]:
    inner, down = stacked(place.config)
    matrix = down if place.matrix == place.config.names[-1] else inner
    return matrix.rows[0][1], {matrix.size_in}


def _check_sizes(name: str, a: Tensor, b: Tensor, sizes: tuple[int, set[int]]) -> None:
    rows, columns = sizes
    if columns != {a.shape[1]} or rows != b.shape[0]:
        raise AdapterRefused(
            f"{name}: lora_A has {a.shape[1]} columns and lora_B {b.shape[0]} rows; "
            f"the model's matrix has {min(columns)} and {rows}"
        )


def _matrix_of(name: str) -> str:
    for end in _ENDS:
        if name.startswith(_PREFIX) and name.endswith(end):
            return name.removeprefix(_PREFIX).removesuffix(end)
    raise AdapterRefused(f"{name} is neither lora_A nor lora_B of a matrix, and is not served")


def _check(name: str, a: Tensor, b: Tensor, rank: int) -> None:
    if a.dim() != 2 or b.dim() != 2 or a.shape[0] != rank or b.shape[1] != rank:
        raise AdapterRefused(f"{name} is not of rank {rank}, as adapter_config.json says")
    _check_dtypes(name, a, b)


def _check_dtypes(name: str, a: Tensor, b: Tensor) -> None:
    if a.dtype not in _DTYPES or b.dtype not in _DTYPES:
        raise AdapterRefused(f"{name} is neither float32, bfloat16 nor float16")


def _kept(name: str, matrix: Tensor, fits: AdapterShapes) -> Tensor:
    """Convert a matrix to the model's dtype. Raises AdapterRefused if a number is not finite."""
    kept = matrix.to(fits.dtype)
    # Six times as fast as `kept.isfinite().all()`.
    if not all(end.isfinite() for end in kept.aminmax()):
        raise AdapterRefused(f"{name} has a number that is not finite in {fits.dtype}")
    return kept.contiguous()


def _targets(name: str, fits: AdapterShapes) -> tuple[str, ...]:
    own = fits.names.own(f"{name}.weight")
    for names in ((own,), fits.names.parts(own)):
        matrices = tuple(one.removesuffix(".weight") for one in names)
        if matrices and all(one in fits.shapes for one in matrices):
            return matrices
    of_experts = "; this engine has no room for experts' (adapter_experts)"
    raise AdapterRefused(
        f"the model has no matrix {name} that an adapter may change"
        f"{of_experts if 'experts' in name.split('.') and not fits.experts else ''}"
    )
