"""A console that runs `ratoon` commands and records their output."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
from typer.testing import CliRunner

from cli.main import build_app


@dataclass(frozen=True)
class Printed:
    """The exit status and the output of a command."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, decoded."""
        return msgspec.json.decode(self.out)


class Console:
    """A console that runs command lines. An exception that no command may raise fails the test."""

    def __init__(self) -> None:
        self._runner = CliRunner()

    def type(self, *words: str, env: dict[str, str] | None = None, answer: str = "") -> Printed:
        """Run a command line, as `cli.main.main` does; return its output."""
        result = self._runner.invoke(build_app(words), list(words), env=env, input=answer)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Printed(result.exit_code, result.stdout, result.stderr)


Ratoon: TypeAlias = Callable[..., Printed]
"""A console that runs commands against a running server."""
