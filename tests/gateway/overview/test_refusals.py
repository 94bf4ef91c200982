from __future__ import annotations

from gateway.overview.refusals import KEPT, LastRefusals, Refusal


def refusal(number: int, code: str = "rate_limit") -> Refusal:
    return Refusal(
        at=number,
        request_id=str(number),
        client_id=None,
        tenant=None,
        route="/v1/chat/completions",
        status=429,
        code=code,
        message="",
    )


def test_the_newest_come_first_and_old_ones_go() -> None:
    refusals = LastRefusals()
    for number in range(KEPT + 5):
        refusals.add(refusal(number))
    listed = refusals.listed()
    assert len(listed) == KEPT
    assert (listed[0].at, listed[-1].at) == (KEPT + 4, 5)


def test_all_are_counted_by_code() -> None:
    refusals = LastRefusals()
    for number in range(KEPT + 5):
        refusals.add(refusal(number, "rate_limit" if number else "not_found"))
    assert refusals.by_code == {"rate_limit": KEPT + 4, "not_found": 1}
