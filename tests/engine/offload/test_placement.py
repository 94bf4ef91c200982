"""The choice of layers to keep in host memory, and the time of a step."""

from __future__ import annotations

import pytest

from engine.models.errors import WrongSetting
from engine.offload.placement import (
    GIB,
    as_gib,
    evenly_spaced,
    least_placement,
    place,
    step_seconds,
)

LAYER = GIB // 2
TWELVE = [LAYER] * 12


def test_layers_are_evenly_spaced_and_the_last_is_one() -> None:
    assert evenly_spaced(12, 3) == (3, 7, 11)
    assert evenly_spaced(12, 5) == (1, 3, 6, 8, 11)
    assert evenly_spaced(12, 12) == tuple(range(12))
    for count in range(1, 81):
        chosen = evenly_spaced(80, count)
        gaps = {after - before for before, after in zip((-1, *chosen), chosen, strict=False)}
        assert len(set(chosen)) == count
        assert chosen[-1] == 79
        assert max(gaps) - min(gaps) <= 1


@pytest.mark.parametrize(("gib", "count"), [(1.5, 3), (1.6, 4), (2.0, 4), (6.0, 12)])
def test_the_fewest_layers_with_so_many_gib(gib: float, count: int) -> None:
    placement = place(TWELVE, gib)
    assert placement.layers == evenly_spaced(12, count)
    assert placement.host_bytes == count * LAYER
    assert placement.freed_bytes == (count - 2) * LAYER


def test_a_buffer_holds_the_largest_of_them() -> None:
    placement = place([LAYER, LAYER, 2 * LAYER, LAYER, LAYER, LAYER], 2.5)
    assert placement.layers == (0, 2, 3, 5)
    assert placement.buffer_bytes == 2 * LAYER


@pytest.mark.parametrize(
    ("layers", "gib", "says"),
    [
        (12, 6.1, r"cpu_offload_gb 6.1: the layers have 5.996 GiB of weights in all$"),
        (12, 1.0, r"so 2 in host memory free none; 1.499 would free some$"),
        (2, 0.5, r"cpu_offload_gb 0.5: 2 layers are on the device .* free none$"),
    ],
)
def test_refuses_what_cannot_be_or_frees_nothing(layers: int, gib: float, says: str) -> None:
    with pytest.raises(WrongSetting, match=says):
        place([LAYER] * layers, gib)


@pytest.mark.parametrize("count", range(3, 13))
def test_what_is_advised_is_what_is_chosen(count: int) -> None:
    room = 6 * GIB - (count - 2) * LAYER
    least = least_placement(TWELVE, room)
    assert least is not None
    assert len(least.layers) == count
    assert place(TWELVE, float(as_gib(least.host_bytes))) == least
    assert least_placement(TWELVE, room - 1) != least, "the control: not a byte less"


def test_two_layers_need_room_in_any_case() -> None:
    assert least_placement(TWELVE, 2 * LAYER) is not None
    assert least_placement(TWELVE, 2 * LAYER - 1) is None


class TestStepSeconds:
    def copies(self, layers: tuple[int, ...], seconds: float) -> dict[int, float]:
        return dict.fromkeys(layers, seconds)

    def test_without_copies_it_is_their_sum(self) -> None:
        assert step_seconds([1.0] * 12, {}) == 12.0

    def test_copies_that_hide_cost_nothing(self) -> None:
        assert step_seconds([1.0] * 12, self.copies((3, 7, 11), 3.0)) == 12.0

    def test_a_decode_takes_as_long_as_its_copies_and_the_last_layer(self) -> None:
        """The model has 12 layers of 1 ms; 6 of them need copies of 100 ms."""
        chosen = self.copies(evenly_spaced(12, 6), 0.1)
        assert step_seconds([0.001] * 12, chosen) == pytest.approx(0.6 + 0.001)

    def test_the_last_layers_would_take_longer_where_layers_hide_copies(self) -> None:
        """Six of 12 layers are copied, and a copy takes as long as two layers."""
        layers = [1.0] * 12
        spaced = step_seconds(layers, self.copies(evenly_spaced(12, 6), 2.0))
        last = step_seconds(layers, self.copies(tuple(range(6, 12)), 2.0))
        assert (spaced, last) == (13.0, 16.0)
        in_parts = step_seconds(layers, self.copies((1, 3, 5, 7, 9, 11), 2.0))
        assert spaced == in_parts

    def test_a_buffer_is_filled_when_its_layer_has_been_computed(self) -> None:
        """Three layers are copied in 1 s each.

        Layer 2 overwrites layer 0, which takes 5 s to compute.
        """
        assert step_seconds([5.0, 1.0, 1.0], self.copies((0, 1, 2), 1.0)) == 8.0
        assert step_seconds([5.0, 0.5, 1.0], self.copies((0, 1, 2), 1.0)) == 8.0
