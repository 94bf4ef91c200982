"""A request's choices, run together in the engine and merged into one stream of events.

The first choice that fails ends the request. The other choices are cancelled, and the error is
raised once. Leaving the `async with` early cancels all choices that still run, and waits for their
ends.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial

from engine.errors import EngineUnavailable
from engine.link.event_messages import Failed, Finished
from engine.link.interface import Engine
from gateway.generation.choice import Choice, Event, run_choice
from gateway.generation.detokenizer import TokenDecoder
from gateway.prompts.generation_request import AdmittedRequest

_MAX_WAITING = 64


# None: a choice has ended, and its stream from the engine is closed
_Told = Event | BaseException | None
OnChoiceEnd = Callable[[int, Finished | Failed], None]


@asynccontextmanager
async def generating(
    engine: Engine,
    admitted: AdmittedRequest,
    decoder: TokenDecoder,
    see: Callable[[Event], None] = lambda _: None,
    on_end: OnChoiceEnd = lambda _, __: None,
    *,
    is_whole: bool = False,
) -> AsyncIterator[AsyncGenerator[Event, None]]:
    """Run all choices of `admitted`. The generator yields their events as they come.

    `see` is called with every event before it is yielded. `on_end` is called with a choice's index
    and the end that `Engine.generate` reports. `on_end` is also called for a choice that is
    cancelled here, before this context ends. With `is_whole`, nothing is shown before the answer is
    complete. A single choice runs without a separate task, which saves a turn of the event loop for
    each token.
    """
    choices = []
    for index, generate in enumerate(admitted.generates):
        told = engine.generate(generate, partial(on_end, index))
        new = partial(_new, admitted, decoder, index)
        choices.append(run_choice(told, new, see, is_whole=is_whole))
    at_once = admitted.at_once or len(choices)
    together = aclosing(choices[0]) if len(choices) == 1 else _merged(choices, at_once)
    async with together as events:
        yield events


def _new(admitted: AdmittedRequest, decoder: TokenDecoder, index: int) -> Choice:
    parser = admitted.parser
    generate = admitted.generates[index]
    return Choice(index, generate, admitted.text, decoder, parser and parser())


@asynccontextmanager
async def _merged(
    choices: Sequence[AsyncGenerator[Event, None]], at_once: int
) -> AsyncIterator[AsyncGenerator[Event, None]]:
    turn = asyncio.Semaphore(at_once)
    told: asyncio.Queue[_Told] = asyncio.Queue(_MAX_WAITING)
    tasks = [asyncio.create_task(_tell(choice, told, turn)) for choice in choices]
    for task in tasks:
        task.add_done_callback(lambda task: _tell_failure(task, told))
    async with aclosing(_listen(told, len(tasks))) as events:
        try:
            yield events
        finally:
            await _cancel(tasks)


async def _tell(
    events: AsyncGenerator[Event, None], told: asyncio.Queue[_Told], turn: asyncio.Semaphore
) -> None:
    async with turn, aclosing(events):
        async for event in events:
            await told.put(event)
    await told.put(None)


def _tell_failure(task: asyncio.Task[None], told: asyncio.Queue[_Told]) -> None:
    error = EngineUnavailable("the request was cancelled") if task.cancelled() else task.exception()
    if error is not None:
        while told.full():
            told.get_nowait()
        told.put_nowait(error)


async def _listen(told: asyncio.Queue[_Told], running: int) -> AsyncGenerator[Event, None]:
    while running:
        event = await told.get()
        if isinstance(event, BaseException):
            raise event
        if event is None:
            running -= 1
        else:
            yield event


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
