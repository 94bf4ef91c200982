"""Pipeline stages have all layers in order, and each has its slice of a block."""

from __future__ import annotations

from dataclasses import replace

import pytest

from storage.layouts.kv_layout import KvGroup, KvLayout
from storage.layouts.stage import Stage, whole
from tests.engine.rigs.origins import ORIGIN

FULL = KvGroup(layers=(0, 2, 4), num_kv_heads=2, head_dim=8, dtype="float32")
WINDOW = KvGroup(layers=(1, 3), num_kv_heads=2, head_dim=8, dtype="float32", window=32)
MODEL = KvLayout((FULL, WINDOW), block_size=16)
ENDS = (1, 3, 5)
STAGES = [Stage(index, ENDS) for index in range(3)]


def test_stages_have_all_layers_in_order() -> None:
    assert [list(stage.layers) for stage in STAGES] == [[0], [1, 2], [3, 4]]
    assert [stage.is_first for stage in STAGES] == [True, False, False]
    assert [stage.is_last for stage in STAGES] == [False, False, True]
    assert whole(5).layers == range(5)
    assert whole(5).is_whole
    assert not any(stage.is_whole for stage in STAGES)


@pytest.mark.parametrize(("index", "ends"), [(3, ENDS), (-1, ENDS), (0, (2, 2)), (0, (3, 1))])
def test_refuses_stages_that_are_none(index: int, ends: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="stage"):
        Stage(index, ends)


def test_a_block_has_the_stages_layers_counted_from_0() -> None:
    parts = [MODEL.stage_of(stage) for stage in STAGES]
    assert [part.num_layers for part in parts] == [1, 2, 2]
    assert [[part.group_of(i).window for i in range(part.num_layers)] for part in parts] == [
        [None],
        [32, None],
        [32, None],
    ]
    assert sum(part.block_bytes for part in parts) == MODEL.block_bytes
    assert parts[1].slice_of(1, 2).block_bytes * 2 == parts[1].block_bytes
    assert MODEL.stage_of(whole(5)) == MODEL


def test_refuses_a_part_of_a_part_and_another_models_stages() -> None:
    for part in (MODEL.stage_of(STAGES[1]), MODEL.slice_of(0, 2)):
        with pytest.raises(ValueError, match="is no stage of"):
            part.stage_of(STAGES[0])
    with pytest.raises(ValueError, match="is no stage of"):
        MODEL.stage_of(Stage(0, (1, 4)))


def test_each_stage_and_each_split_has_a_fingerprint_of_its_own() -> None:
    """Give each stage of each split its own fingerprint, even if two splits have an equal stage.

    A stage therefore does not find the blocks of a stage of another split.
    """
    layouts = [MODEL, *(MODEL.stage_of(stage) for stage in STAGES)]
    layouts.append(MODEL.stage_of(Stage(1, (3, 5))))
    assert layouts[-1].groups == layouts[-2].groups, "the control"
    assert len({replace(ORIGIN, kv=one).fingerprint() for one in layouts}) == 5
