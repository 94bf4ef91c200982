"""The sending of one question to several replicas at once.

If a replica does not answer, its part of the answer is missing. If no replica answers, the first
replica's error is raised.
"""

import asyncio
from collections.abc import Mapping

from engine.errors import EngineError, EngineUnavailable
from engine.link.interface import Engine
from engine.link.query import Query, R

# Seconds to wait for one replica. This is less than the wait for all (`ANSWER_S`), so that a
# hanging replica does not hide the answers of others.
WITHIN_S = 3.0


async def ask_each(
    engines: Mapping[str, Engine], query: Query[R], within_s: float | None = None
) -> dict[str, R | EngineError]:
    """Ask each replica; return answers and errors by name. Slow replicas count as unavailable."""

    async def asked(engine: Engine) -> R | EngineError:
        try:
            return await engine.ask(query, within_s)
        except EngineError as error:
            return error

    answers = await asyncio.gather(*map(asked, engines.values()))
    return dict(zip(engines, answers, strict=True))


async def ask_all(engines: Mapping[str, Engine], query: Query[R]) -> dict[str, R]:
    """Ask all replicas; return the answers that came, or raise if no replica answers."""
    answers = await ask_each(engines, query, WITHIN_S)
    good = {name: one for name, one in answers.items() if not isinstance(one, EngineError)}
    if not good:
        raise first_error(answers)
    return good


def first_error(answers: Mapping[str, object]) -> EngineError:
    """Return the first error among the answers; EngineUnavailable if no replica was asked."""
    errors = (one for one in answers.values() if isinstance(one, EngineError))
    return next(errors, EngineUnavailable("no engine is connected"))
