"""A service level objective (SLO), and goodput: the requests that meet the SLO."""

import re
from collections.abc import Sequence

import msgspec

from cli.errors import BadSetting
from cli.load.sender import RequestOutcome

FLAG = "--slo"
_UNITS = {"s": 1.0, "ms": 1e-3}


class Slo(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of an SLO on a request's times, in seconds. None means no bound."""

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None

    def is_met_by(self, outcome: RequestOutcome) -> bool:
        """Return whether all times are within their bounds. False for a failed request.

        A request without a second token meets any TPOT. A request without content misses its TTFT.
        """
        if outcome.error is not None or (self.ttft is not None and outcome.ttft_s is None):
            return False
        times = (
            (outcome.ttft_s, self.ttft),
            (outcome.tpot_s, self.tpot),
            (outcome.e2e_s, self.e2e),
        )
        return all(time is None or most is None or time <= most for time, most in times)


class Goodput(msgspec.Struct, frozen=True, kw_only=True):
    """The number and rate of requests that met an SLO."""

    slo: Slo
    met: int
    share: float
    requests_per_s: float


def goodput(outcomes: Sequence[RequestOutcome], slo: Slo, wall_s: float) -> Goodput:
    """Compute the goodput of a run of `wall_s` seconds."""
    met = sum(map(slo.is_met_by, outcomes))
    return Goodput(slo=slo, met=met, share=met / len(outcomes), requests_per_s=met / wall_s)


def parse_slo(text: str) -> Slo:
    """Read one or more bounds, such as 'ttft=2s,tpot=50ms,e2e=30s'. Raises BadSetting."""
    bounds: dict[str, float] = {}
    for part in text.split(","):
        name, _, time = part.strip().partition("=")
        if name not in Slo.__struct_fields__ or name in bounds:
            raise BadSetting(FLAG, f"{part!r} is not ttft=, tpot= or e2e= and a time, each once")
        bounds[name] = parse_seconds(FLAG, time)
    return Slo(**bounds)


def parse_seconds(flag: str, text: str) -> float:
    """Read a time: '2s' is 2 and '50ms' is 0.05. Raises BadSetting for `flag`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s)", text)
    if found is None:
        raise BadSetting(flag, f"{text!r} is not a time such as 2s or 50ms")
    return float(found[1]) * _UNITS[found[2]]
