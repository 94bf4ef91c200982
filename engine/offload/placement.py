"""The choice of layers to offload to host memory, and the predicted time of a step with them.

    layers    0  1  2  3  4  5  6  7  8  9 10 11      three of twelve are offloaded: 3, 7 and 11
    bus       |--- 3 ---|--- 7 ---|      |-- 11 --|   two buffers on the device, filled in turn
    compute   0  1  2   | 3  4  5  6 | 7  8 ...       the next copy begins when its buffer is free

The chosen layers are evenly spaced, so that a layer is copied while the layers before it are
computed. The last layer is always chosen, so that the bus is used during the whole step. This
module does not import torch.

Elsewhere: the copies (`prefetch`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from engine.models.errors import WrongSetting

GIB = 1 << 30
NUM_BUFFERS = 2  # buffers on the device: one is read while the other is filled
_SHORT = 0.9994  # times this factor, a size rounded to four digits is still below the exact size


@dataclass(frozen=True, slots=True)
class Placement:
    """The offloaded layers, in order, and their bytes.

    `buffer_bytes` is the size of one device buffer: the bytes of the largest of these layers.
    """

    layers: tuple[int, ...]
    host_bytes: int
    buffer_bytes: int

    @property
    def freed_bytes(self) -> int:
        """The bytes of the offloaded layers minus those of the buffers. May be negative."""
        return self.host_bytes - NUM_BUFFERS * self.buffer_bytes


def evenly_spaced(num_layers: int, count: int) -> tuple[int, ...]:
    """Choose `count` of the layers, evenly spaced. The last layer is always chosen."""
    return tuple((place + 1) * num_layers // count - 1 for place in range(count))


def place(layer_bytes: Sequence[int], gib: float) -> Placement:
    """Choose the fewest layers that have at least `gib` GiB together.

    `layer_bytes` has the bytes of every layer. Raises WrongSetting if all layers together have
    fewer GiB, or if the choice would free no device memory.
    """
    wanted, total = gib * GIB, sum(layer_bytes)
    if wanted > total:
        raise WrongSetting(
            f"cpu_offload_gb {gib:g}: the layers have {as_gib(total)} GiB of weights in all"
        )
    found = next(one for one in _placements(layer_bytes) if one.host_bytes >= wanted)
    if found.freed_bytes > 0:
        return found
    freeing = next((one for one in _placements(layer_bytes) if one.freed_bytes > 0), None)
    advice = "" if freeing is None else f"; {as_gib(freeing.host_bytes)} would free some"
    raise WrongSetting(
        f"cpu_offload_gb {gib:g}: {NUM_BUFFERS} layers are on the device in any case, so "
        f"{len(found.layers)} in host memory free none{advice}"
    )


def least_placement(layer_bytes: Sequence[int], room: float) -> Placement | None:
    """Choose the fewest layers to offload such that the weights fit in `room` device bytes.

    Return None if no choice suffices.
    """
    total = sum(layer_bytes)
    fitting = (one for one in _placements(layer_bytes) if total - one.freed_bytes <= room)
    return next(fitting, None)


def _placements(layer_bytes: Sequence[int]) -> Iterator[Placement]:
    for count in range(1, len(layer_bytes) + 1):
        layers = evenly_spaced(len(layer_bytes), count)
        sizes = [layer_bytes[index] for index in layers]
        yield Placement(layers, sum(sizes), max(sizes))


def as_gib(num_bytes: int) -> str:
    """Format a placement's bytes as GiB with four digits: a `cpu_offload_gb` that selects it."""
    return f"{num_bytes / GIB * _SHORT:.4g}"


def step_seconds(layer_seconds: Sequence[float], copy_seconds: Mapping[int, float]) -> float:
    """Return the seconds that a step's layers take, including waits for copies.

    `layer_seconds` has the computation time of each layer, and `copy_seconds` the copy time of each
    offloaded layer. The first copies begin with the step. Each later copy begins when the bus is
    free and the layer that is in the buffer has been computed.
    """
    order = sorted(copy_seconds)
    arrived = dict[int, float]()
    bus = now = 0.0
    for index in order[:NUM_BUFFERS]:
        arrived[index] = bus = bus + copy_seconds[index]
    following = dict(zip(order, order[NUM_BUFFERS:], strict=False))
    for index, seconds in enumerate(layer_seconds):
        now = max(now, arrived.get(index, now)) + seconds
        if (after := following.get(index)) is not None:
            arrived[after] = bus = max(bus, now) + copy_seconds[after]
    return now
