"""`--config FILE` and environment variables: their precedence, and refused settings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from cli.options.config_file import (
    MAX_BYTES,
    OTHER_VARIABLES,
    BadConfigFile,
    ConfigFile,
    check_variables,
    settings_in,
)
from cli.options.config_file import _options_of as options_of
from cli.options.flags import flattened
from cli.options.gateway_options import GatewayFlags

ROOT = Path(__file__).parents[3]
SERVE = options_of("serve")


def written(directory: Path, text: str) -> Path:
    path = directory / "ratoon.yaml"
    path.write_text(text)
    return path


class TestSettingsIn:
    def test_it_says_what_is_there_and_nothing_else(self, tmp_path: Path) -> None:
        text = "port: 8123\ncache_sharing: pooled\npage: false\ndata_dir: /srv/ratoon\n"
        said = settings_in(written(tmp_path, text), SERVE)
        assert said == {
            "port": 8123,
            "cache_sharing": "pooled",
            "page": False,
            "data_dir": Path("/srv/ratoon"),
        }
        assert settings_in(written(tmp_path, ""), SERVE) == {}

    @pytest.mark.parametrize(
        "value",
        [
            "2026-13-45",
            '!!int "abc"',
            '!!float "x"',
            '!!timestamp "x"',
            "!!python/object:os.system x",
            "9" * 5000,
            "[" * 1000 + "]" * 1000,
            "[1",
            "*nothing",
            "&a [*a]",
            ".nan",
            "\0",
            "1" + " " * MAX_BYTES,
        ],
        ids=range(13),
    )
    def test_whatever_a_value_is_the_error_is_one_line(self, tmp_path: Path, value: str) -> None:
        path = written(tmp_path, f"max_running: {value}\n")
        with pytest.raises(BadConfigFile) as caught:
            settings_in(path, SERVE)
        assert caught.value.message.startswith(f"{path}: ")
        assert "\n" not in caught.value.message
        assert settings_in(written(tmp_path, "max_running: 7\n"), SERVE) == {"max_running": 7}

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            ("max_runing: 3", "max_runing is no setting; the nearest is max_running"),
            (
                "max_running: 3\nport: 8000\nmax_running: 4",
                "max_running is there twice, in lines 1",
            ),
            ("{max_running: 3, max_running: 4}", "max_running is there twice, in lines 1 and 1"),
            ("max-running: 3", "max-running is no setting; the nearest is max_running"),
            ("config_file: other.yaml", "config_file is no setting"),
            ("port: many", "port is 'many'; it should be a valid integer"),
            ("port: 70000", "port is 70000; it should be less than or equal to 65535"),
            ("cache_sharing: x", "cache_sharing is 'x'; it should be 'partitioned' or 'pooled'"),
            ("host_cache_gib: .inf", "host_cache_gib is inf; it should be a finite number"),
            ("grace_s: .nan", "grace_s is nan; it should be a finite number"),
            ("page: perhaps", "page is 'perhaps'"),
            ("- 1", "it should have settings, such as max_running: 64"),
            ("max_running", "it should have settings, such as max_running: 64"),
            ("port: [", "while parsing"),
        ],
    )
    def test_a_mistake_is_named_in_one_line(self, tmp_path: Path, text: str, told: str) -> None:
        path = written(tmp_path, text)
        with pytest.raises(BadConfigFile, match=re.escape(told)) as refused:
            settings_in(path, SERVE)
        assert refused.value.message.startswith(f"{path}: ")
        assert "\n" not in refused.value.message

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(BadConfigFile, match=r"none\.yaml: No such file or directory$"):
            settings_in(tmp_path / "none.yaml", SERVE)

    def test_the_environment_is_no_part_of_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PORT", "9")
        assert settings_in(written(tmp_path, "host: 0.0.0.0"), SERVE) == {"host": "0.0.0.0"}

    def test_the_example_is_right(self) -> None:
        assert settings_in(ROOT / "deploy" / "ratoon.yaml", SERVE)


class TestVariables:
    def test_one_that_nobody_knows_is_refused_with_the_nearest(self) -> None:
        with pytest.raises(BadConfigFile, match="RATOON_MAX_RUNING is no setting; the nearest is "):
            check_variables({"RATOON_MAX_RUNING": "3"}, SERVE)

    @pytest.mark.parametrize(
        "name",
        [
            "RATOON_PORT",
            "RATOON_CONFIG",
            "RATOON_WORKLOAD",
            "RATOON_DEMO_KEY",
            "RATOON_TEST_X",
            "X",
        ],
    )
    def test_those_of_other_commands_and_files_are_let_pass(self, name: str) -> None:
        check_variables({name: "1"}, SERVE)

    def test_all_that_files_of_this_repository_set_are_known(self) -> None:
        files = ["Makefile", "docker-compose.yml", "docker-compose.gpu.yml", "Dockerfile"]
        found = {
            name: "1"
            for file in files
            for name in re.findall(r"\bRATOON_[A-Z0-9_]+\b", (ROOT / file).read_text())
        }
        assert len(found) > 5
        check_variables(found, SERVE)
        assert OTHER_VARIABLES.isdisjoint({"RATOON_PORT", "RATOON_MODEL"})


class TestOrder:
    @pytest.fixture
    def seen(self) -> list[GatewayFlags]:
        return []

    @pytest.fixture
    def app(self, seen: list[GatewayFlags]) -> typer.Typer:
        def serve(gateway: GatewayFlags, config_file: ConfigFile = None) -> None:
            del config_file
            seen.append(gateway)

        def other() -> None:
            """Do nothing: typer uses command names only if an app has several commands."""

        app = typer.Typer()
        app.command("serve")(flattened(serve))
        app.command("other")(other)
        return app

    def run(self, app: typer.Typer, *words: str, **environment: str) -> Any:
        return CliRunner().invoke(app, ["serve", *words], env=environment)

    def test_flag_then_variable_then_file_then_default(
        self, app: typer.Typer, seen: list[GatewayFlags], tmp_path: Path
    ) -> None:
        file = str(written(tmp_path, "port: 1001\ngrace_s: 7\nlog_level: debug\n"))
        for words, environment in (
            ((), {}),
            (("--config", file), {}),
            (("--config", file), {"RATOON_PORT": "1002"}),
            (("--config", file, "--port", "1003"), {"RATOON_PORT": "1002"}),
            (("--port", "1003"), {"RATOON_CONFIG": file}),
        ):
            assert self.run(app, *words, **environment).exit_code == 0
        assert [one.port for one in seen] == [8000, 1001, 1002, 1003, 1003]
        assert [one.grace_s for one in seen] == [30.0, 7.0, 7.0, 7.0, 7.0]
        assert [one.log_level for one in seen] == ["info", *["debug"] * 4]

    def test_a_mistake_ends_the_command(
        self, app: typer.Typer, seen: list[GatewayFlags], tmp_path: Path
    ) -> None:
        ended = self.run(app, "--config", str(written(tmp_path, "prot: 1\n")))
        assert ended.exit_code == 2
        assert "prot is no setting; the nearest is port" in ended.output
        assert not seen
