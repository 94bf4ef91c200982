"""`ratoon simulate` and `ratoon plan` print tables, JSON and plots, or one-line errors."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from cli.options.engine_options import ENGINE_DEFAULTS
from tests.cli.console import Console
from tests.cli.plan.checkpoint import config
from tests.cli.simulation.traces import row, write


@pytest.fixture
def trace(tmp_path: Path) -> str:
    rows = [
        row(0, [1, 2, 3], tenant="a"),
        row(1, [1, 2, 3, 4], tenant="a"),
        row(2, [1, 2, 3], tenant="b"),
        row(3, [1, 2, 3, 4, 5], tenant="a"),
    ]
    return str(write(tmp_path / "trace.jsonl", rows))


def test_json_is_one_object_with_the_rates(console: Console, trace: str) -> None:
    printed = console.type("simulate", trace, "--block-size", "10", "--json")
    assert printed.status == 0
    report = printed.json
    assert report["token_hit_rate"] == pytest.approx(70 / 150)
    assert report["by_tier"] == {"device": pytest.approx(70 / 150), "host": 0.0, "disk": 0.0}
    assert {name: one["token_hit_rate"] for name, one in report["by_tenant"].items()} == {
        "a": pytest.approx(70 / 120),
        "b": 0.0,
    }
    assert (report["policy"], report["requests"], report["too_long"]) == (
        ENGINE_DEFAULTS.cache.cache_policy,
        4,
        0,
    ), "the default forecast is of the default server"
    assert report["tokens"] == {"device": 500_000, "host": 0, "disk": 0}
    assert report["moved_bytes"]["host"] == {"written": 0, "loaded": 0}
    assert 0 < report["compute_saved"] < 1
    assert report["ttft_ms"]["mean"] < report["ttft_without_cache_ms"]["mean"]
    assert report["by_size"] == []


@pytest.mark.parametrize("policy", ["lru", "value"])
def test_every_policy_gives_a_table(console: Console, trace: str, policy: str) -> None:
    tiers = ("--device-tokens", "50", "--host-tokens", "50", "--disk-tokens", "50")
    words = ("--block-size", "10", "--policy", policy)
    printed = console.type("simulate", trace, *tiers, *words)
    assert printed.status == 0
    for name in ("cached", "Estimated TTFT", "Copied, GB", "all", "blocks replayed a second"):
        assert name in printed.out


def test_sizes_are_replayed_with_the_same_shares(console: Console, trace: str) -> None:
    tiers = ("--device-tokens", "500", "--host-tokens", "500", "--block-size", "10")
    report = console.type("simulate", trace, *tiers, "--sizes", "20,0.1k,1M", "--json").json
    assert [point["tokens"] for point in report["by_size"]] == [20, 100, 1_000_000]
    rates = [point["token_hit_rate"] for point in report["by_size"]]
    assert rates[0] < rates[1] <= rates[2] == report["token_hit_rate"]


def test_the_plot_is_an_svg_with_a_curve_for_lru(
    console: Console, trace: str, tmp_path: Path
) -> None:
    plot = tmp_path / "plot.svg"
    printed = console.type("simulate", trace, "--block-size", "10", "--plot", str(plot))
    assert printed.status == 0
    assert ElementTree.fromstring(plot.read_bytes()).tag == "{http://www.w3.org/2000/svg}svg"
    text = plot.read_text()
    assert "value" in text
    assert "lru" in text
    assert "<script" not in text.replace('<script type="text/javascript">window.pygal', "")
    assert all(hasattr(finder, "find_spec") for finder in sys.meta_path)
    # Drawing must not break the lookup of installed distributions.
    assert version("ratoon")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--sizes", "1M,lots"), "'lots' is not a number of tokens"),
        (("--sizes", "5"), "not one block fits the device tier"),
        (("--device-tokens", "9"), "no block of 10 tokens fits"),
        (("--plot", "/nowhere/at/all.svg"), "No such file"),
    ],
)
def test_an_impossible_setting_is_reported(
    console: Console, trace: str, words: tuple[str, ...], says: str
) -> None:
    printed = console.type("simulate", trace, "--block-size", "10", *words)
    assert printed.status in (1, 2)
    assert says in printed.err
    assert printed.out == ""


def test_a_bad_line_ends_the_command_with_its_number(console: Console, trace: str) -> None:
    Path(trace).write_bytes(Path(trace).read_bytes() + b"{}\n")
    printed = console.type("simulate", trace, "--block-size", "10")
    assert printed.status == 2
    assert "line 5" in printed.err
    assert "Traceback" not in printed.err


def test_a_plan_comes_from_the_config_alone(console: Console, tmp_path: Path) -> None:
    config(tmp_path)
    words = (
        "--model",
        str(tmp_path),
        "--gpu-gib",
        "141",
        "--host-gib",
        "128",
        "--disk-gib",
        "1000",
    )
    plan = console.type("plan", *words, "--json").json
    assert plan["kv_bytes_per_token"] == 131072
    assert plan["host_tokens"] == 128 * 2**30 // 131072
    assert 900_000 < plan["device_tokens"] < 960_000
    assert plan["host_break_even_tokens"] < 100 < plan["disk_break_even_tokens"]
    assert "beats computing from" in console.type("plan", *words).out
    assert "not looked for on this machine: 1 x " in console.type("plan", *words).out


def test_a_plan_of_two_gpus_holds_more(console: Console, tmp_path: Path) -> None:
    words = ("plan", "--model", str(config(tmp_path)), "--gpu-gib", "24", "--json")
    one, two = console.type(*words).json, console.type(*words, "--gpus", "2").json
    assert two["device_tokens"] > 2 * one["device_tokens"]


def test_a_model_that_does_not_fit_is_reported(console: Console, tmp_path: Path) -> None:
    printed = console.type("plan", "--model", str(config(tmp_path)), "--gpu-gib", "8")
    assert printed.status == 2
    assert "the weights take 15.0 GiB" in printed.err


def test_neither_command_needs_torch(tmp_path: Path) -> None:
    file = write(tmp_path / "t", [row(0, [1, 2])])
    words = msgspec.json.encode(["ratoon", "simulate", str(file), "--block-size", "10"]).decode()
    code = (
        "import sys; sys.modules['torch'] = None\n"
        f"sys.argv = {words}\n"
        "from cli.main import build_app\n"
        "build_app()(standalone_mode=False)\n"
        "sys.argv = ['ratoon', 'plan']\n"
        "build_app()(standalone_mode=False)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "bytes of KV a token" in done.stdout


def test_a_forecast_is_of_the_default_server(console: Console) -> None:
    [simulated, served] = (
        re.search(r"--(?:cache-)?policy <(?s:.*?)default: (\w+)", console.type(word, "--help").out)
        for word in ("simulate", "serve")
    )
    assert simulated is not None
    assert served is not None
    assert simulated.group(1) == served.group(1) == "lru"
