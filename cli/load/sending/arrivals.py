"""The arrival times of requests: Poisson, evenly spaced, or recorded in a trace."""

import random
from itertools import accumulate
from math import inf
from pathlib import Path
from typing import Annotated

import msgspec

from cli.errors import BadSetting
from cli.json_text import NotJson, decode_json

POISSON, CONSTANT = "poisson", "constant"


class RecordedArrival(msgspec.Struct):
    """A line of a trace. Other fields are ignored."""

    timestamp: Annotated[float, msgspec.Meta(ge=0)]  # milliseconds since the trace began


def arrival_times(kind: str, rate: float | None, count: int, seed: int) -> list[float]:
    """Return the seconds from the first of `count` arrivals to each arrival.

    `kind` is "poisson", "constant" or a file whose lines are JSON objects with a `timestamp` in ms.
    `rate` is arrivals a second. An infinite rate means all at once. A file's times are scaled to
    this mean rate, or unchanged if `rate` is None. Raises BadSetting.
    """
    if kind in (POISSON, CONSTANT):
        if rate is None:
            raise BadSetting("--arrivals", f"{kind} needs --rate")
        return _drawn(kind, rate, count, random.Random(f"{seed} arrivals"))
    times = _recorded(Path(kind), count)
    if rate is None or not times[-1]:
        return times
    return [at * (count - 1) / times[-1] / rate for at in times]


def _drawn(kind: str, rate: float, count: int, rng: random.Random) -> list[float]:
    if rate == inf:
        return [0.0] * count
    gaps = (rng.expovariate(rate) if kind == POISSON else 1 / rate for _ in range(count - 1))
    return list(accumulate(gaps, initial=0.0))


def _recorded(path: Path, count: int) -> list[float]:
    try:
        lines = [line for line in path.read_bytes().splitlines() if line.strip()]
        rows = [decode_json(line, RecordedArrival) for line in lines[:count]]
    except OSError as error:
        known = f"{POISSON}, {CONSTANT} or a file"
        raise BadSetting("--arrivals", f"{path}: {error.strerror}; it is {known}") from error
    except NotJson as error:
        raise BadSetting("--arrivals", f"{path}: {error}") from error
    if len(rows) < count:
        raise BadSetting("--requests", f"{count} is more than the {len(rows)} arrivals of {path}")
    times = sorted(row.timestamp / 1000 for row in rows)
    return [at - times[0] for at in times]
