"""Several engines of one machine divide its host memory, GPUs and threads."""

from pathlib import Path

import pytest

from cli.errors import BadSetting
from cli.models.machine import Machine, machine
from cli.serving.replicas import child_names, environments, replica_configs, sockets, with_roles
from engine.config import EngineConfig

ALONE = EngineConfig.of(
    model_dir="/m",
    socket="/run/r/engine.sock",
    disk_cache_dir="/d/blocks",
    disk_cache_gib=3.0,
    host_cache_gib=6.0,
    host_cache_tokens=300,
    cache_tokens=4096,
)
HOST = Machine(num_cores=13, free_bytes=900, gpus=())


def test_one_engine_is_as_it_always_was() -> None:
    assert replica_configs(ALONE, 1, HOST) == [ALONE]
    assert child_names(1) == ["engine"]


def test_several_divide_the_host_and_have_places_of_their_own() -> None:
    first, second, third = replica_configs(ALONE, 3, HOST)
    assert (first.process.host_memory_bytes, first.process.num_threads) == (300, 4)
    assert (
        first.cache.host_cache_gib,
        first.cache.host_cache_tokens,
        first.cache.disk_cache_gib,
    ) == (2.0, 100, 1.0)
    assert first.cache.cache_tokens == 4096, "each has its own device"
    places = [
        (Path(one.process.socket).name, one.cache.disk_cache_dir) for one in (first, second, third)
    ]
    assert places == [
        ("engine.sock", "/d/blocks"),
        ("engine-1.sock", "/d/blocks-1"),
        ("engine-2.sock", "/d/blocks-2"),
    ]
    assert sockets(ALONE.process.socket, 3) == [
        one.process.socket for one in (first, second, third)
    ]
    assert [one.process.exchange for one in (first, second, third)] == [
        f"{one.process.socket}.x" for one in (first, second, third)
    ]
    own = {"socket": "", "disk_cache_dir": "", "exchange": ""}
    assert len({str(one.changed(**own)) for one in (first, second, third)}) == 1
    assert child_names(3) == ["engine-0", "engine-1", "engine-2"]


def test_the_first_ones_compute_prompts_for_the_others() -> None:
    configs = replica_configs(ALONE, 3, HOST)
    assert with_roles(configs, 0) == configs
    assert [one.process.role for one in with_roles(configs, 2)] == ["prefill", "prefill", "decode"]
    with pytest.raises(BadSetting, match=r"3 of 3 engines .* give --replicas 4 or more"):
        with_roles(configs, 3)


def test_engines_of_several_ranks_fetch_nothing_from_each_other() -> None:
    ranks = replica_configs(ALONE.changed(pipeline_parallel=2), 2, HOST)
    assert [one.process.exchange for one in ranks] == [None, None]
    assert with_roles(ranks, 0) == ranks
    with pytest.raises(BadSetting, match=r"--prefill-replicas: engines of several ranks .* send"):
        with_roles(ranks, 1)


def test_what_is_left_open_stays_open_and_each_has_a_thread() -> None:
    bare = EngineConfig.of(model_dir="/m", socket="/s", num_threads=2, disk_cache_dir=None)
    for one in replica_configs(bare, 3, HOST):
        assert (one.cache.host_cache_gib, one.cache.host_cache_tokens, one.process.num_threads) == (
            None,
            None,
            1,
        )
        assert one.cache.disk_cache_dir is None


@pytest.mark.parametrize(
    ("device", "count", "gpus", "expected"),
    [
        ("auto", 1, ("0", "1"), [{}]),
        ("cpu", 2, ("0", "1"), [{}, {}]),
        ("auto", 2, (), [{}, {}]),
        ("auto", 2, ("3", "5", "7"), [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in ("3", "5")]),
    ],
)
def test_each_has_a_gpu_where_there_are_some(
    device: str, count: int, gpus: tuple[str, ...], expected: list[dict[str, str]]
) -> None:
    config = ALONE.changed(device=device)
    assert environments(config, count, gpus) == expected


def test_each_has_as_many_as_it_has_ranks() -> None:
    two_ranks = ALONE.changed(device="auto", tensor_parallel=2)
    expected = [{"CUDA_VISIBLE_DEVICES": gpus} for gpus in ("0,1", "2,3")]
    assert environments(two_ranks, 2, tuple("01234")) == expected


def test_too_few_gpus_are_an_error_that_says_what_to_do() -> None:
    with pytest.raises(BadSetting, match=r"--replicas: 3 engines need a GPU each, and 2 can"):
        environments(ALONE, 3, ("0", "1"))
    with pytest.raises(BadSetting, match=r"2 engines need 2 GPUs each, and 3 can"):
        environments(ALONE.changed(tensor_parallel=2), 2, tuple("012"))


def test_the_gpus_are_those_that_may_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, 4")
    assert machine().gpus == ("2", "4")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert machine().gpus == ()
    assert machine().free_bytes > 0
