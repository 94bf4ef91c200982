"""What the access log costs: processor time of the gateway for a request, with the log and without.

    python -m benchmarks.gateway.access_log --turns 60

Three gateways run at once, complete but for the engine: one without a log, one with, and a second
one without, which shows what the difference of two equal ones is here. They are asked by turns, in
an order that changes, and each turn is short, so that other load of the host meets all alike. The
answers have one token, so the gateway does as little else for a line as it can; the lines go into
a file.

A gateway's rate is its core divided by the time that a request takes of it, so the share of this
time that the log adds is the share of the rate that it costs. Processor time is read for all
threads, since the one that writes takes the interpreter from the one that answers.

On a host with other load two equal gateways differ by more than a line costs. So the log is also
timed alone, around an application that does nothing: entry, line and file. JSON lines.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Annotated, Literal

import typer
import uvloop
from starlette.types import Message, Receive, Scope, Send

from benchmarks.gateway.requests import Client
from benchmarks.gateway.started import chat_request, first_started
from benchmarks.record import emit, progress
from cli.options.flags import flattened
from gateway.composition import DIALECTS
from gateway.http.error_dialect import Dialects
from gateway.http.request_head import RequestHead, RequestUse, running_request
from gateway.telemetry.access_log import AccessLog
from tests.doubles.gateway.gateway_process import gateways, until_up
from tests.doubles.processes import busy_seconds

_OFF, _ON, _OFF_AGAIN = "without the log", "with the log", "again without"
_ANSWERS, _TRIES = 2000, 20


@dataclass(frozen=True, slots=True)
class Options:
    """How much is asked."""

    turns: Annotated[int, typer.Option(help="Of each gateway.")] = 60
    requests: Annotated[int, typer.Option(help="In a turn.")] = 160
    connections: Annotated[int, typer.Option(help="At once.")] = 8
    form: Annotated[Literal["lines", "json"], typer.Option(help="Of the log.")] = "lines"
    port: Annotated[int, typer.Option(help="Of the first gateway; the others have the next.")] = (
        8100
    )


@dataclass(frozen=True, slots=True)
class Measured:
    """A gateway's process and who asks it."""

    pid: int
    client: Client

    async def turn(self, options: Options) -> float:
        """Microseconds of its processor for a request."""
        before = busy_seconds(self.pid)
        each = options.requests // options.connections
        await asyncio.gather(*(self._some(each) for _ in range(options.connections)))
        await asyncio.sleep(0.12)  # the last lines are written within a tenth of a second
        return (busy_seconds(self.pid) - before) / (each * options.connections) * 1e6

    async def _some(self, count: int) -> None:
        for _ in range(count):
            await self.client.send(0.0)


async def measure(options: Options, found: dict[str, Measured]) -> None:
    """Ask by turns, and print."""
    for one in found.values():
        await one.turn(options)  # what is imported and filled at the first requests
    spent: dict[str, list[float]] = {name: [] for name in found}
    chance = random.Random(0)
    for turn in range(options.turns):
        # An order that came again would give one of them warm caches each time.
        for name in chance.sample(list(found), len(found)):
            spent[name].append(await found[name].turn(options))
        progress(f"turn {turn + 1} of {options.turns}")
    for name, times in spent.items():
        low, middle, high = statistics.quantiles(times, n=4)
        emit(name, median_us=middle, lower_quartile_us=low, upper_quartile_us=high)
    for name in (_ON, _OFF_AGAIN):
        ratios = [a / b - 1 for a, b in zip(spent[name], spent[_OFF], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        error = 1.25 * statistics.stdev(ratios) / len(ratios) ** 0.5  # of the median
        emit(
            f"{name}, against {_OFF}",
            median_percent=middle * 100,
            lower_quartile_percent=low * 100,
            upper_quartile_percent=high * 100,
            standard_error_percent=error * 100,
        )


def added_us(form: Literal["lines", "json"]) -> float:
    """Microseconds of the processor that the log adds to a request: the least of some tries each.

    The application that it is around does nothing, so little else is in the difference.
    """
    least = {False: float("inf"), True: float("inf")}
    with tempfile.TemporaryFile(buffering=0) as file:
        for _ in range(_TRIES):
            for is_logged, before in least.items():
                began = time.process_time()
                with AccessLog(form, file.write).written() as log:
                    asyncio.run(_answered(log if is_logged else None))
                least[is_logged] = min(before, time.process_time() - began)
    return (least[True] - least[False]) / _ANSWERS * 1e6


async def _answered(log: AccessLog | None) -> None:
    """Some requests, one after the other."""
    app = RequestHead(_at_once, Dialects(*DIALECTS), None, log)
    path = "/v1/chat/completions"
    for _ in range(_ANSWERS):
        scope = {"type": "http", "method": "POST", "path": path, "headers": []}
        await app(scope, _nothing, _to_nobody)


async def _at_once(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with what the access log has of a short chat."""
    del receive
    running = running_request(scope)
    running.tenant_id, running.key_id = "tn_0123456789abcdef", "key_0123456789abcdef"
    running.used = RequestUse("length", 40, 32, 1, 0.002)
    await send({"type": "http.response.start", "status": 200, "headers": []})


async def _nothing() -> Message:
    return {"type": "http.disconnect"}


async def _to_nobody(_: Message) -> None:
    pass


@contextmanager
def started(options: Options) -> Iterator[dict[str, Measured]]:
    """The three gateways."""
    forms = {_OFF: "off", _ON: options.form, _OFF_AGAIN: "off"}
    with ExitStack() as stack:
        found = {}
        for port, (name, form) in enumerate(forms.items(), options.port):
            config, key = stack.enter_context(first_started(port, access_log=form))
            log = stack.enter_context(tempfile.TemporaryFile())
            [pid] = stack.enter_context(gateways(config, 1, log))
            chat = [{"role": "user", "content": "Hi"}]
            found[name] = Measured(
                pid, Client(port, chat_request(key, messages=chat, max_tokens=1))
            )
        yield found


async def _when_up(options: Options, found: dict[str, Measured]) -> None:
    for port in range(options.port, options.port + len(found)):
        await until_up(port)
    await measure(options, found)


def main(options: Options) -> None:
    """Measure."""
    emit("the log around an application that does nothing", us=added_us(options.form))
    with started(options) as found:
        uvloop.run(_when_up(options, found))


if __name__ == "__main__":
    typer.run(flattened(main))
