"""The check that Ray's machines have resources for the engines, and its message if they do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.cluster.room import RayMachine, check_room, lacking
from cli.cluster.settings import ClusterSettings, read_settings
from cli.errors import BadSetting

SMALL = RayMachine("a", {"CPU": 8.0, "GPU": 1.0, "memory": 1e9})
LARGE = RayMachine("b", {"CPU": 32.0, "GPU": 4.0, "h200": 4.0})


def read(tmp_path: Path, text: str) -> ClusterSettings:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    return read_settings(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("num_gpus: 8", "num_gpus: an engine needs 8, and no machine has more: 4"),
        ("num_cpus: 64", "num_cpus: an engine needs 64, and no machine has more: 32"),
        ("resources: {a100: 1}", "resources.a100: an engine needs 1, and no machine has more: 0"),
    ],
)
def test_what_no_machine_has_is_named(tmp_path: Path, text: str, said: str) -> None:
    lack = lacking(read(tmp_path, text), [SMALL, LARGE])
    assert lack is not None
    assert lack.message == said


@pytest.mark.parametrize("text", ["num_gpus: 4", "num_cpus: 0", "resources: {h200: 2}"])
def test_where_one_engine_has_room_nothing_is_lacking(tmp_path: Path, text: str) -> None:
    assert lacking(read(tmp_path, text), [SMALL, LARGE]) is None


def test_a_ray_that_stays_as_it_is_must_have_room_for_all(tmp_path: Path) -> None:
    check_room(read(tmp_path, "engines: 4\nnum_gpus: 1"), [LARGE])
    with pytest.raises(BadSetting, match=r"^engines: 5 need 5 in all \(num_gpus 1 each\), and"):
        check_room(read(tmp_path, "engines: 5\nnum_gpus: 1"), [LARGE])
    with pytest.raises(BadSetting, match=r"^max_engines: 9 need 9 in all .* machine has 4$"):
        check_room(read(tmp_path, "max_engines: 9\nnum_gpus: 1"), [LARGE])
    with pytest.raises(BadSetting, match=r"^num_gpus: an engine needs 8"):
        check_room(read(tmp_path, "num_gpus: 8"), [LARGE])


def test_shares_of_a_machine_may_fill_it(tmp_path: Path) -> None:
    """Fill a machine with fractional shares.

    In binary floating point, ten times 1.1 is a little more than 11.
    """
    machine = RayMachine("c", {"CPU": 11.0})
    check_room(read(tmp_path, "engines: 10\nnum_cpus: 1.1"), [machine])
    with pytest.raises(BadSetting, match=r"^engines: 11 need 12\.1 in all"):
        check_room(read(tmp_path, "engines: 11\nnum_cpus: 1.1"), [machine])
