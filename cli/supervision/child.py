"""A child process, which gets its own session. Its output is read by line."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path

import cli
from cli.supervision import parent_death
from engine.process import DRAIN_SIGNAL

# Names with a word that suggests a credential, anywhere: SECRET_KEY_BASE, TF_TOKEN_example_org. The
# names in keys.env are among them.
_CREDENTIAL = re.compile(
    r"(.*_)?([^_]*(TOKEN|SECRET|PASSWORD|APIKEY|ACCESSKEY)S?|KEYS?|(SSH)?PASS(WD|PHRASE)?"
    r"|CREDENTIALS?|CREDS?|JWT|PAT|DSN|COOKIES?|AUTH|CONNECTION_STRING)(_.*)?|.*_PWD",
    re.IGNORECASE,
)
# exceptions: variables that name a file, which may hold a credential, or a number of tokens
_NO_CREDENTIAL = re.compile(r".*_(FILE|PATH|DIR|SOCK)|RATOON_.*_TOKENS", re.IGNORECASE)
_HUB_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_CHUNK_BYTES = 1 << 16
_MAX_LINE_BYTES = 1 << 20
_LAST_OUTPUT_S = 1.0

OnLine = Callable[[str], None]


def python_command(module: str, *arguments: str) -> list[str]:
    """Return the command line that runs `module` of this installation in any directory."""
    return [sys.executable, "-P", "-m", module, *arguments]


def python_environment() -> dict[str, str]:
    """Return the environment for `python_command`: module path, and unbuffered output.

    The environment has no credentials, since no module reads credentials from there.
    """
    root = str(Path(cli.__file__).parents[1])
    inherited = os.environ.get("PYTHONPATH")
    path = f"{root}{os.pathsep}{inherited}" if inherited else root
    given = {name: one for name, one in os.environ.items() if not _marks_credential(name)}
    return {**given, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


def _marks_credential(name: str) -> bool:
    return _CREDENTIAL.fullmatch(name) is not None and _NO_CREDENTIAL.fullmatch(name) is None


def hub_tokens() -> dict[str, str]:
    """Return the model hub's environment variables, for a child that downloads a model itself."""
    return {name: os.environ[name] for name in _HUB_TOKENS if name in os.environ}


class Child:
    """A running process and its output, for one event loop."""

    def __init__(self, process: asyncio.subprocess.Process, reading: asyncio.Task[None]) -> None:
        self._process = process
        self._reading = reading

    @classmethod
    async def start(cls, command: Sequence[str], on_line: OnLine) -> Child:
        """Start `command`, whose outputs both go to `on_line`. The child dies with this process.

        The child has its own session. So a Ctrl-C at the terminal reaches only the parent, which
        then ends its children in order.
        """
        tied = [sys.executable, "-I", "-S", parent_death.__file__, str(os.getpid()), *command]
        # A pipe made here. With asyncio's pipe, some versions of Python notice the child's exit
        # only when the pipe is closed, and processes that the child started can keep the pipe open
        # for ever.
        output, its_output = os.pipe()
        reading = asyncio.create_task(_read_lines(output, on_line))
        try:
            process = await asyncio.create_subprocess_exec(
                *tied,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=its_output,
                stderr=its_output,
                start_new_session=True,
                env=python_environment(),
            )
        finally:
            os.close(its_output)
        return cls(process, reading)

    @property
    def pid(self) -> int:
        """The process id, which is also the id of its process group."""
        return self._process.pid

    def terminate(self) -> None:
        """Ask the process to end, by SIGTERM."""
        with suppress(ProcessLookupError):
            self._process.terminate()

    def drain(self) -> None:
        """Ask an engine to end once its requests have ended."""
        with suppress(ProcessLookupError):
            self._process.send_signal(DRAIN_SIGNAL)

    def kill(self) -> None:
        """Kill the process and all processes in its group."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    async def wait(self) -> int:
        """Wait for the process's end, and return its exit status.

        Then kills the process group and reads the last output.
        """
        status = await self._process.wait()
        self.kill()
        # Processes that left the group live on, and may keep the pipe open.
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_OUTPUT_S):
                await self._reading
        return status


async def _read_lines(pipe: int, on_line: OnLine) -> None:
    stream = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), FileIO(pipe, "rb")
    )
    try:
        await _pass_on_lines(stream, on_line)
    finally:
        transport.close()


async def _pass_on_lines(stream: asyncio.StreamReader, on_line: OnLine) -> None:
    rest = b""
    while chunk := await stream.read(_CHUNK_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            on_line(line.decode(errors="replace"))
        if len(rest) > _MAX_LINE_BYTES:
            on_line(rest.decode(errors="replace"))
            rest = b""
    if rest:
        on_line(rest.decode(errors="replace"))
