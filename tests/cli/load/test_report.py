import pytest

from cli.load.report import make_report, show
from cli.load.sender import RequestOutcome


def outcome(number: int, cached: int | None = 6) -> RequestOutcome:
    return RequestOutcome(
        e2e_s=1.0 + number,
        ttft_s=0.1 * (number + 1),
        gaps_s=(0.01, 0.03),
        prompt_tokens=10,
        cached_tokens=cached,
        output_tokens=3,
    )


FAILED = RequestOutcome(e2e_s=99.0, error="429 queue_full")


def test_rates_are_over_the_wall_time() -> None:
    report = make_report([outcome(0), outcome(1), FAILED], wall_s=4.0, seed=7)
    assert (report.requests, report.succeeded, report.seed) == (3, 2, 7)
    assert (report.requests_per_s, report.output_tokens, report.output_tokens_per_s) == (
        0.5,
        6,
        1.5,
    )


def test_the_hit_rate_is_the_cached_share_of_all_prompt_tokens() -> None:
    report = make_report([outcome(0, cached=0), outcome(1, cached=9)], wall_s=1.0, seed=0)
    assert (report.prompt_tokens, report.cached_tokens, report.hit_rate) == (20, 9, 0.45)


def test_a_server_that_does_not_say_has_no_hit_rate_rather_than_none() -> None:
    report = make_report([outcome(0, cached=None)], wall_s=1.0, seed=0)
    assert (report.cached_tokens, report.hit_rate) == (None, None)
    assert make_report([outcome(0, cached=0)], wall_s=1.0, seed=0).hit_rate == 0.0


def test_percentiles_are_of_the_good_ones_and_gaps_are_pooled() -> None:
    report = make_report([*(outcome(n) for n in range(11)), FAILED], wall_s=1.0, seed=0)
    assert report.ttft_s is not None
    assert report.ttft_s.p50 == pytest.approx(0.6)
    assert report.ttft_s.p90 == pytest.approx(1.0)
    assert report.itl_s is not None
    assert report.itl_s.count == 22
    assert report.itl_s.mean == pytest.approx(0.02)
    assert report.e2e_s is not None
    assert report.e2e_s.max == 11.0


def test_errors_are_counted_by_code() -> None:
    outcomes = [FAILED, FAILED, RequestOutcome(e2e_s=1.0, error="timeout"), outcome(0)]
    assert make_report(outcomes, wall_s=1.0, seed=0).errors == {"429 queue_full": 2, "timeout": 1}


def test_nothing_succeeded_is_a_report_too(capsys: pytest.CaptureFixture[str]) -> None:
    report = make_report([FAILED], wall_s=1.0, seed=0)
    assert (report.ttft_s, report.itl_s, report.e2e_s, report.hit_rate) == (None,) * 4
    show(report)
    printed = capsys.readouterr()
    assert "0 of 1" in printed.out
    assert printed.err == "1 failed: 429 queue_full\n"


def test_the_tables_have_the_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    show(make_report([outcome(n) for n in range(11)], wall_s=2.0, seed=42))
    out = capsys.readouterr().out
    for word in ("TTFT", "ITL", "E2E", "p50", "p90", "p95", "p99", "600.0", "60.0%", "5.50", "42"):
        assert word in out, word
