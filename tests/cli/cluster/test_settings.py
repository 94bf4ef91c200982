"""Valid settings of cluster.yaml are accepted. Others are refused with one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.cluster.scaling import ScalingBounds
from cli.cluster.settings import ClusterSettings, read_settings
from cli.errors import CliError
from engine.link.address import address, exchange_at

FULL = """
model: Qwen/Qwen3-8B
engines: 2
max_engines: 4
target_wait_s: 1.5
num_gpus: 1
resources: {h100: 1}
engine_port: 7400
redis_url: redis://redis:6379/0
link_key_file: /etc/ratoon/link.key
ray_address: auto
dtype: bfloat16
max_running: 64
"""


def read(tmp_path: Path, text: str) -> ClusterSettings:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    return read_settings(path)


def test_a_file_says_what_runs_and_what_each_engine_is(tmp_path: Path) -> None:
    settings = read(tmp_path, FULL)
    assert (settings.model, settings.engines, settings.resources) == (
        "Qwen/Qwen3-8B",
        2,
        {"h100": 1.0},
    )
    assert settings.scaling == ScalingBounds(least=2, most=4, target_wait_s=1.5)
    assert (settings.engine.model.dtype, settings.engine.steps.max_running) == ("bfloat16", 64)
    assert [settings.port(number) for number in range(3)] == [7400, 7403, 7406]
    assert not settings.is_one_machine


def test_no_two_of_an_engine_s_sockets_have_one_port(tmp_path: Path) -> None:
    settings = read(tmp_path, "tensor_parallel: 4")
    first = f"tcp://10.0.0.1:{settings.port(0)}"
    taken = [first, address(first).heartbeat, exchange_at(first)]
    ports = [int(one.rpartition(":")[2]) for one in taken]
    assert ports == [*range(settings.port(0), settings.port(1))]


def test_what_a_file_leaves_out_is_one_engine_of_one_machine(tmp_path: Path) -> None:
    settings = read(tmp_path, "engines: 1\n")
    assert (settings.model, settings.scaling, settings.num_gpus) == ("handbook", None, 0.0)
    assert settings.is_one_machine
    assert settings.engine.steps.max_running == 256


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("engine: 2", "engine is no setting; the nearest is engines"),
        ("max_runing: 2", "max_runing is no setting; the nearest is max_running"),
        ("socket: a.sock", "socket is no setting"),
        ("engines: many", "engines is 'many'"),
        ("engines: 0", "engines is 0"),
        ("dtype: float8", "dtype is 'float8'"),
        ("resources: {h100: a lot}", "resources"),
        ("min_engines: 2", "min_engines: it needs max_engines"),
        ("engines: 5\nmax_engines: 4", "engines: 5 is not from"),
        ("engine_port: 65534\nengines: 2", "engine_port: the last engine's would be 65537"),
        ("exchange: /x.sock", "exchange: each engine has its own"),
        ("redis_url: redis://r:6379", "link_key_file: engines on several machines"),
        ("num_gpus: 1\ntensor_parallel: 2", "num_gpus: 1 is less than tensor_parallel, 2"),
        ("num_gpus: 1\npipeline_parallel: 2", "less than tensor_parallel x pipeline_parallel, 2"),
        ("tensor_parallel: 4\npipeline_parallel: 3", "tensor_parallel: tensor_parallel 4 x"),
        ("gateway: {prot: 1}", "gateway.prot is no setting; the nearest is port"),
        ("gateway: {port: many}", "gateway.port is 'many'"),
        ("gateway: {model: m}", "gateway.model is no setting"),
        ("gateway: 8000", "gateway is 8000"),
        ("redis_url: r:6379", "--redis-url: it must start"),
        ("num_gpus: 1.5", "num_gpus: 1.5 is no whole number"),
        ("resources: {GPU: 1}", "resources: GPU is num_gpus"),
        ("resources: {h200: -1}", "resources: h200 is -1; it should be 0 or more"),
        ("target_wait_s: 5", "target_wait_s: it needs max_engines"),
        ("engines: 2\nengines: 3", "engines is there twice, in lines 1 and 2"),
        ("min_engines: 4\nmax_engines: 2", "engines: 1 is not from min_engines (4) to max_engin"),
        ("role: prefill", "role: no engine of this machine would answer; see prefill_engines"),
        ("engines: 2\nprefill_engines: 2", "prefill_engines: 2 of 2 engines leave none"),
        (
            "engines: 3\nmin_engines: 1\nmax_engines: 4\nprefill_engines: 1",
            "prefill_engines: 1 of 1 engines leave none",
        ),
        ("engines: 2\nprefill_engines: 1\nrole: decode", "role: prefill_engines gives each"),
        (
            "engines: 2\nprefill_engines: 1\ntensor_parallel: 2",
            "prefill_engines: engines of several ranks (--tensor-parallel, --pipeline-",
        ),
        ("role: prefill\npipeline_parallel: 2", "role: engines of several ranks"),
        ("engines: [{name: a}, {name: a}]", "it should be a valid integer"),
    ],
)
def test_what_no_cluster_can_be_is_said_in_a_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(CliError) as refused:
        read(tmp_path, text)
    assert said in refused.value.message
    assert "\n" not in refused.value.message


@pytest.mark.parametrize(
    "text",
    [
        "num_gpus: 2",
        "resources: {h200: 0.5}",
        "target_wait_s: 5\nmax_engines: 2",
        "role: prefill\nredis_url: redis://r:6379\nlink_key_file: /link.key",
        "engines: 2\nprefill_engines: 1",
    ],
)
def test_what_a_cluster_can_be_is_taken(tmp_path: Path, text: str) -> None:
    """Accept valid settings (positive control)."""
    assert read(tmp_path, text).engines >= 1


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CliError, match=r"absent\.yaml"):
        read_settings(tmp_path / "absent.yaml")
