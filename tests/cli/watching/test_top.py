"""`ratoon top` prints one reading to a pipe. On a terminal, each reading replaces the one before.

The gateway is real, with a fake engine.
"""

from collections.abc import AsyncIterator
from io import StringIO
from typing import Any

import pytest
from rich.console import Console as Terminal

from cli.watching.top import watch
from tests.cli.console import Ratoon
from tests.cli.watching.test_rates import EARLIER, LATER

RED = "\x1b[1;31m"


@pytest.mark.parametrize("line", ["top --once", "top"])
def test_a_pipe_gets_one_reading(ratoon: Ratoon, line: str) -> None:
    printed = ratoon(line)
    assert printed.status == 0
    lines = printed.out.splitlines()
    assert "# Engine since its start" in lines
    assert "running\t0" in lines
    assert "tenant\trequests/s\tprompt tokens/s\thit rate\tgenerated/s\tblocks" in lines
    assert ratoon("top --json").json["engine_id"] == "fake"


@pytest.mark.parametrize("width", [100, 40])
async def test_a_terminal_gets_each_reading_in_place_of_the_one_before(width: int) -> None:
    out = StringIO()
    terminal = Terminal(
        file=out, force_terminal=True, width=width, height=80, _environ={"TERM": "xterm"}
    )

    async def readings() -> AsyncIterator[dict[str, Any]]:
        for one in (EARLIER, LATER):
            yield one

    await watch(terminal, readings())
    shown = out.getvalue()
    assert shown.index("since its start") < shown.index("\x1b[1A") < shown.index("in 4.0 s")
    assert "acme" in shown


@pytest.mark.parametrize("width", [100, 40])
async def test_wrong_answers_are_red(width: int) -> None:
    shown = {}
    for differed in (0, 1):
        out = StringIO()
        terminal = Terminal(
            file=out, force_terminal=True, width=width, height=80, _environ={"TERM": "xterm"}
        )

        async def readings(differed: int = differed) -> AsyncIterator[dict[str, Any]]:
            yield EARLIER | {"sentinel": {"checked": 4, "differed": differed, "damaged_blocks": 0}}

        await watch(terminal, readings())
        shown[differed] = out.getvalue()
    assert RED in shown[1]
    assert "The cache is wrong" in shown[1]
    assert RED not in shown[0]
