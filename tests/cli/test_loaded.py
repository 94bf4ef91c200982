"""The modules that a command loads: no other command's, and libraries only when needed.

`ratoon serve` should start its engine at once. Positive control: each library that it does not load
is loaded by another command.
"""

from pathlib import Path

import pytest

from cli.serving.installation import first_start
from gateway.startup.first_start import KEYS_FILE
from gateway.state.home import STATE_FILE
from tests.cli.fresh import loaded_by
from tests.doubles.engine.tiny_model import RUNNABLE, write_tiny_model
from tests.doubles.ports import free_port

OTHERS = {
    "cli.load.bench",
    "cli.simulation.simulate",
    "cli.isolation.verify_isolation",
    "cli.operating.tenancy.tenants",
    "cli.plan.plan",
    "cli.operating.admin_client",
}
LATER = {"aiohttp", "huggingface_hub", "numpy", "redis"}
FRAMES = "rich.console"  # module that draws frames around help
NEVER = {"torch", "fastapi"}  # modules that no command except a server needs


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a data directory with which a start fails after it opens the state, just before it
    starts processes.
    """
    directory = tmp_path_factory.mktemp("data")
    first_start(directory, None)
    (directory / KEYS_FILE).unlink()
    (directory / STATE_FILE).write_bytes(b"not a database" * 100)
    return directory


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """Make a model directory whose faults show only when its tensors are read."""
    directory = write_tiny_model(tmp_path / "tiny", config=RUNNABLE)
    (directory / "model.safetensors").touch()
    return directory


def test_the_help_of_serve_loads_no_other_command(tmp_path: Path) -> None:
    loaded = loaded_by(tmp_path, "serve", "--help")
    assert "cli.serving.serve" in loaded
    assert not (OTHERS | LATER | NEVER) & loaded


def test_a_start_loads_no_library_that_it_does_not_need(
    tmp_path: Path, data_dir: Path, model_dir: Path
) -> None:
    words = ("serve", "--model", str(model_dir), "--data-dir", str(data_dir))
    loaded = loaded_by(tmp_path, *words, RATOON_PORT=str(free_port()))
    assert {"cli.serving.serve", "sqlite3"} <= loaded, "it came as far as the state"
    assert not (OTHERS | LATER) & loaded


def test_a_model_of_the_hub_loads_the_hubs_client(tmp_path: Path) -> None:
    words = ("serve", "--model", "owner/no-such-model")
    assert "huggingface_hub" in loaded_by(tmp_path, *words, HF_HUB_OFFLINE="1")


def test_state_in_redis_loads_its_client(tmp_path: Path, model_dir: Path) -> None:
    words = ("serve", "--model", str(model_dir), "--redis-url", "redis://127.0.0.1:1/0")
    assert "redis" in loaded_by(tmp_path, *words, RATOON_PORT=str(free_port()))


def test_commands_that_need_the_others_load_them(tmp_path: Path) -> None:
    for words, needed in (
        (("bench",), {"cli.load.bench", "aiohttp"}),
        (("simulate",), {"cli.simulation.simulate", "numpy"}),
        (("tenants", "list"), {"cli.operating.tenancy.tenants"}),
        (("plan",), {"cli.plan.plan", FRAMES}),
    ):
        loaded = loaded_by(tmp_path, *words, "--help")
        assert needed <= loaded
        assert not NEVER & loaded


@pytest.mark.parametrize(
    ("words", "has_frames"),
    [
        (("--help",), False),
        (("--version",), False),
        (("tenants", "--help"), False),
        ((), True),  # prints the help after an error, since no command is given
        (("tenants",), True),
        (("no-such",), True),
    ],
)
def test_what_only_lists_commands_loads_none(
    words: tuple[str, ...], has_frames: bool, tmp_path: Path
) -> None:
    """Load no command's module to list the commands, so that the help appears at once."""
    loaded = loaded_by(tmp_path, *words)
    assert not (OTHERS | LATER | {"cli.serving.serve"}) & loaded
    assert (FRAMES in loaded) == has_frames


def test_completing_a_command_loads_none(tmp_path: Path) -> None:
    """Load no command's module to complete a command's name, which a shell does after each key.

    Positive control: completing a flag loads its command.
    """

    def loaded(typed: str) -> set[str]:
        asked = {"_RATOON_COMPLETE": "complete_bash", "COMP_CWORD": str(typed.count(" "))}
        return loaded_by(tmp_path, COMP_WORDS=typed, **asked)

    for typed in ("ratoon se", "ratoon tenants keys r"):
        assert not (OTHERS | LATER) & loaded(typed)
    assert "cli.operating.tenancy.tenants" in loaded("ratoon tenants list --js")
