import pytest

from cli.errors import BadSetting
from cli.load.sending.batching import (
    ContinuousBatching,
    DynamicBatching,
    StaticBatching,
    Waiting,
    parse_batchings,
)


def waiting(count: int, *, running: int = 0, more: bool = True) -> Waiting:
    return Waiting(count, oldest_at=10.0, running=running, more_will_come=more)


@pytest.mark.parametrize(
    ("queue", "due"),
    [
        (waiting(3), 0),
        (waiting(4), 4),
        (waiting(9), 4),
        (waiting(9, running=1), 0),
        (waiting(3, more=False), 3),
        (waiting(3, more=False, running=1), 0),
        (waiting(0, more=False), 0),
    ],
)
def test_static(queue: Waiting, due: int) -> None:
    assert StaticBatching(4).due(queue, now=1000.0) == due
    assert StaticBatching(4).deadline(queue) is None


@pytest.mark.parametrize(
    ("queue", "now", "due"),
    [
        (waiting(3), 10.4, 0),
        (waiting(3), 10.5, 3),
        (waiting(4), 10.0, 4),
        (waiting(9, running=7), 10.0, 8),
        (waiting(9), 10.5, 9),
        (waiting(0), 1000.0, 0),
    ],
)
def test_dynamic(queue: Waiting, now: float, due: int) -> None:
    assert DynamicBatching(4, 0.5).due(queue, now) == due


def test_a_dynamic_batch_has_a_deadline_while_one_waits() -> None:
    assert DynamicBatching(4, 0.5).deadline(waiting(1)) == 10.5
    assert DynamicBatching(4, 0.5).deadline(waiting(0)) is None


def test_continuous() -> None:
    assert ContinuousBatching().due(waiting(3, running=100), now=0.0) == 3
    assert ContinuousBatching().deadline(waiting(3)) is None


def test_names() -> None:
    found = parse_batchings("static:8, dynamic:4:20ms,continuous")
    assert found == {
        "static:8": StaticBatching(8),
        "dynamic:4:20ms": DynamicBatching(4, 0.02),
        "continuous": ContinuousBatching(),
    }
    assert list(parse_batchings("all")) == ["static:32", "dynamic:32:50ms", "continuous"]


@pytest.mark.parametrize(
    "text", ["", "static", "static:0", "static:x", "dynamic:4", "dynamic:4:20", "continuous:1"]
)
def test_no_names(text: str) -> None:
    with pytest.raises(BadSetting, match="--batching: "):
        parse_batchings(text)
