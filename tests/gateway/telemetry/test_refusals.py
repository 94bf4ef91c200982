from __future__ import annotations

from gateway.telemetry.refusals import KEPT, OF_STRANGERS, LastRefusals, Refusal, newest


def refusal(number: int, code: str = "rate_limit", *, stranger: bool = False) -> Refusal:
    return Refusal(
        at=number,
        request_id=str(number),
        client_id=None,
        tenant=None,
        stranger=stranger,
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


def test_strangers_push_out_their_own_alone() -> None:
    refusals, others = LastRefusals(), LastRefusals()
    for one in (refusals, others):
        for number in range(10):
            one.add(refusal(number))
        for number in range(10, 10_000):
            one.add(refusal(number, "invalid_api_key", stranger=True))
    listed = refusals.listed()
    assert [one.at for one in listed[-10:]] == list(range(9, -1, -1))
    assert [one.at for one in listed[:-10]] == list(range(9999, 9999 - OF_STRANGERS, -1))
    assert refusals.by_code == {"rate_limit": 10, "invalid_api_key": 9990}
    together = newest([*listed, *others.listed()])  # the refusals of both workers
    assert sum(one.stranger for one in together) == OF_STRANGERS
    assert sum(not one.stranger for one in together) == 20
