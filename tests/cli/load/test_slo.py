import pytest

from cli.errors import BadSetting
from cli.load.sender import RequestOutcome
from cli.load.slo import Slo, goodput, parse_slo

SLO = Slo(ttft=1.0, tpot=0.1)


def outcome(
    ttft_s: float | None = 1.0, e2e_s: float = 1.4, tokens: int = 5, error: str | None = None
) -> RequestOutcome:
    gaps_s = () if ttft_s is None else (e2e_s - ttft_s,)
    return RequestOutcome(
        e2e_s=e2e_s, ttft_s=ttft_s, gaps_s=gaps_s, output_tokens=tokens, error=error
    )


@pytest.mark.parametrize(
    ("one", "is_met"),
    [
        (outcome(), True),
        (outcome(ttft_s=1.01, e2e_s=1.2), False),
        (outcome(e2e_s=1.5), False),
        (outcome(e2e_s=9.0, tokens=1), True),
        (outcome(ttft_s=None), False),
        (outcome(error="timeout"), False),
    ],
)
def test_every_bound_has_to_be_met(one: RequestOutcome, is_met: bool) -> None:
    assert SLO.is_met_by(one) is is_met


def test_the_whole_request_can_be_bounded() -> None:
    assert Slo(e2e=1.4).is_met_by(outcome(ttft_s=None))
    assert not Slo(e2e=1.3).is_met_by(outcome())


def test_goodput_is_a_share_of_all_requests_and_a_rate() -> None:
    found = goodput([outcome(), outcome(), outcome(e2e_s=9.0), outcome(error="429")], SLO, 4.0)
    assert (found.met, found.share, found.requests_per_s) == (2, 0.5, 0.5)


def test_bounds_are_read_with_their_units() -> None:
    assert parse_slo("ttft=2s,tpot=50ms") == Slo(ttft=2.0, tpot=0.05)
    assert parse_slo("e2e=1.5s") == Slo(e2e=1.5)


@pytest.mark.parametrize(
    "text", ["", "ttft", "ttft=", "ttft=2", "ttft=-1s", "itl=2s", "ttft=1s,ttft=2s", "ttft=1s,"]
)
def test_what_is_no_slo(text: str) -> None:
    with pytest.raises(BadSetting, match="--slo: "):
        parse_slo(text)
