"""`docker-compose.yml` and the commands in its containers use the same flags and variables."""

from __future__ import annotations

import re
from itertools import takewhile
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]
from typer.main import get_command

from cli.cluster.settings import read_settings
from cli.main import build_app

ROOT = Path(__file__).parents[3]
FILES = ("docker-compose.yml", "docker-compose.gpu.yml")
# variables that other programs read
OTHERS = {"OTEL_EXPORTER_OTLP_HEADERS", "TRITON_CACHE_DIR"}

_SET = re.compile(r"^ {4,6}([A-Z][A-Z_]+): ", re.MULTILINE)
_GATEWAY = re.compile(r"^ {2}(gateway-\d+):\n {4}<<: \*gateway$", re.MULTILINE)
_NUMBER = re.compile(r'^ {4}RATOON_GATEWAYS: "(\d+)"', re.MULTILINE)


def understood() -> set[str]:
    """Return the variables that `ratoon gateway` and `ratoon engine` read."""
    commands = get_command(build_app()).commands  # type: ignore[attr-defined]
    found: set[str] = set()
    for name in ("gateway", "engine"):
        for parameter in commands[name].params:
            named = parameter.envvar or ()
            found.update([named] if isinstance(named, str) else named)
    return found


def gateways() -> list[str]:
    return _GATEWAY.findall((ROOT / "docker-compose.yml").read_text())


@pytest.mark.parametrize("name", FILES)
def test_every_setting_is_one(name: str) -> None:
    settings = set(_SET.findall((ROOT / name).read_text()))
    assert {setting for setting in settings if setting.startswith("RATOON_")}
    assert settings - understood() - OTHERS - {"TORCH", "TORCH_INDEX"} == set()


def test_a_setting_that_is_none_would_be_found() -> None:
    assert _SET.findall('    RATOON_GATEWAY: "2"\n') == ["RATOON_GATEWAY"]
    assert "RATOON_GATEWAY" not in understood()


def test_each_gateway_knows_how_many_share_the_rates_while_redis_is_away() -> None:
    [number] = _NUMBER.findall((ROOT / "docker-compose.yml").read_text())
    assert int(number) == len(gateways()) == 2


def service(name: str) -> str:
    """Return the lines of a service, or of a YAML anchor that several services share."""
    text = (ROOT / "docker-compose.yml").read_text()
    begins = rf"^(?:  {name}:|x-{name}: &{name})\n"
    _, _, rest = text.partition(re.findall(begins, text, re.MULTILINE)[0])
    indent = "  " if f"x-{name}:" in text else "    "
    return "\n".join(takewhile(lambda line: line.startswith(indent), rest.splitlines()))


def seconds(pattern: str, text: str) -> int:
    [found] = re.findall(pattern, text)
    return int(found)


def test_stopping_goes_from_the_front_to_the_back() -> None:
    """Stop services from front to back: each stops before the services on which it depends."""
    assert f"depends_on: [{', '.join(gateways())}]" in service("front")
    assert "depends_on: [redis, engine]" in service("gateway")


def test_the_front_lets_streams_come_to_their_end() -> None:
    stages = (ROOT / "Dockerfile").read_text().split("\nFROM ")
    [front] = [stage for stage in stages if " AS front\n" in stage]
    assert "\nSTOPSIGNAL SIGUSR1\n" in front  # SIGTERM would close all connections at once
    last = seconds(r"hard-stop-after (\d+)s", (ROOT / "deploy/haproxy.cfg").read_text())
    assert 30 < last < seconds(r"stop_grace_period: (\d+)s", service("front"))


def test_the_front_knows_every_gateway_on_both_ports() -> None:
    front = (ROOT / "deploy/haproxy.cfg").read_text()
    for gateway in gateways():
        for port in (8000, 8001):
            assert f"server {gateway} {gateway}:{port}" in front


def test_two_engines_share_what_one_has_and_have_their_own_places() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    one, two = services["engine"], services["engine-2"]
    assert ("profiles" in one, two.pop("profiles")) == (False, ["two-engines"])
    own = ("environment", "healthcheck")
    assert {k: v for k, v in one.items() if k not in own} == {
        k: v for k, v in two.items() if k not in own
    }
    places = ("RATOON_SOCKET", "RATOON_EXCHANGE", "RATOON_DISK_CACHE_DIR")
    assert not {one["environment"].get(name) for name in places} & {
        two["environment"][name] for name in places
    }
    assert two["environment"]["RATOON_SOCKET"] in two["healthcheck"]["test"]
    assert one["environment"].items() - two["environment"].items() == {
        ("RATOON_DISK_CACHE_DIR", "/var/cache/ratoon/blocks"),
        ("RATOON_EXCHANGE", f"{one['healthcheck']['test'][-1]}.x"),
    }
    assert two["environment"]["RATOON_EXCHANGE"] == f"{two['environment']['RATOON_SOCKET']}.x"


def test_on_gpus_two_engines_are_alike_and_each_has_its_own() -> None:
    """Give both engines a GPU of their own and the same settings.

    An engine without a GPU has another fingerprint, so the gateway would leave it out.
    """
    base, over = (yaml.safe_load((ROOT / name).read_text())["services"] for name in FILES)
    names = {name for name in base if name.startswith("engine")}
    assert over.keys() == names == {"engine", "engine-2"}
    reserved = [over[name].pop("deploy")["resources"]["reservations"] for name in sorted(names)]
    [first], [second] = (one["devices"] for one in reserved)
    assert {*first.pop("device_ids")}.isdisjoint(second.pop("device_ids"))
    assert first == second
    assert over["engine"] == over["engine-2"]
    assert over["engine"]["environment"]["RATOON_DEVICE"] == "cuda"


def test_every_setting_on_kubernetes_is_one_and_every_secret_is_mounted() -> None:
    parts = list(yaml.safe_load_all((ROOT / "deploy/kubernetes/ratoon.yaml").read_text()))
    [shared] = [part["data"] for part in parts if part["kind"] == "ConfigMap"]
    assert shared.keys() <= understood()
    specs = [part["spec"] for part in parts if "spec" in part]
    pods = [spec["template"]["spec"] for spec in specs if "template" in spec]
    for pod in pods:
        [container] = pod["containers"]
        given = {one["name"] for one in container.get("env", ())}
        assert given - understood() - OTHERS <= {"POD_IP"}
        mounted = {one["name"] for one in container["volumeMounts"]}
        # the volume of the volume claim
        volumes = {one["name"] for one in pod["volumes"]} | {"data"}
        assert mounted <= volumes
    assert len(pods) == 3


def test_what_kuberay_runs_is_a_cluster_and_every_mount_has_a_volume(tmp_path: Path) -> None:
    parts = list(yaml.safe_load_all((ROOT / "deploy/kubernetes/kuberay.yaml").read_text()))
    [held] = [part["data"] for part in parts if part["kind"] == "ConfigMap"]
    (tmp_path / "cluster.yaml").write_text(held["cluster.yaml"])
    settings = read_settings(tmp_path / "cluster.yaml")
    [job] = [part["spec"] for part in parts if part["kind"] == "RayJob"]
    assert job["entrypoint"].split() == ["ratoon", "cluster", "up", "/etc/ratoon/cluster.yaml"]
    head = job["rayClusterSpec"]["headGroupSpec"]
    [workers] = job["rayClusterSpec"]["workerGroupSpecs"]
    assert workers["replicas"] == settings.engines
    for group in (head, workers):
        pod = group["template"]["spec"]
        [container] = pod["containers"]
        places = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
        assert places.keys() == {one["name"] for one in pod["volumes"]}
    needed = (settings.model, settings.data_dir, settings.link_key_file)
    for path in map(Path, filter(None, needed)):
        assert any(path.is_relative_to(place) for place in places.values()), path
