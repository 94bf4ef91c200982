"""One question to several replicas at once.

A replica that does not answer costs its part of the answer. Where none answers, the first one's
error is raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from engine.errors import EngineError, EngineUnavailable
from engine.link.interface import Engine

T = TypeVar("T")
Ask = Callable[[Engine], Coroutine[Any, Any, T]]

# Less than the operator waits for all of them (`gateway.bounded_engine`), so that one that hangs
# does not hide the others.
WITHIN_S = 3.0


async def ask_each(
    engines: Mapping[str, Engine], ask: Ask[T], within_s: float | None = None
) -> dict[str, T | EngineError]:
    """What each answers, or the error that it raises; one that takes longer is unavailable."""

    async def asked(engine: Engine) -> T | EngineError:
        try:
            async with asyncio.timeout(within_s):
                return await ask(engine)
        except EngineError as error:
            return error
        except TimeoutError:
            return EngineUnavailable("the engine did not answer in time")

    answers = await asyncio.gather(*map(asked, engines.values()))
    return dict(zip(engines, answers, strict=True))


async def ask_all(
    engines: Mapping[str, Engine], ask: Ask[T], within_s: float | None = WITHIN_S
) -> dict[str, T]:
    """The answers of those that have answered; raises where none has."""
    answers = await ask_each(engines, ask, within_s)
    good = {name: one for name, one in answers.items() if not isinstance(one, EngineError)}
    if not good:
        raise first_error(answers)
    return good


def first_error(answers: Mapping[str, object]) -> EngineError:
    """The first error among the answers; where nothing was asked, that nobody is there."""
    errors = (one for one in answers.values() if isinstance(one, EngineError))
    return next(errors, EngineUnavailable("no engine is connected"))
