from pathlib import Path

import pytest

from cli.errors import CliError
from cli.load.plots import MOST_DOTS, plot_runs
from cli.load.sender import RequestOutcome


def outcomes(count: int) -> list[RequestOutcome]:
    return [
        RequestOutcome(e2e_s=2.0, ttft_s=0.5 + at / 1e4, output_tokens=4, sent_at=float(at))
        for at in range(count)
    ]


def test_curves_have_the_names_of_their_runs(tmp_path: Path) -> None:
    plot_runs(tmp_path / "new", {"": outcomes(3)})
    for name in ("over-time.svg", "distribution.svg"):
        svg = (tmp_path / "new" / name).read_text()
        assert ">TTFT<" in svg
        assert ">TPOT<" in svg


def test_long_runs_are_thinned_and_say_so(tmp_path: Path) -> None:
    plot_runs(tmp_path, {"": outcomes(10)})
    few = (tmp_path / "over-time.svg").read_text()
    plot_runs(tmp_path, {"": outcomes(2 * MOST_DOTS + 1)})
    many = (tmp_path / "over-time.svg").read_text()
    assert "one request of 3" in many
    assert "one request of" not in few


def test_a_run_without_times_is_a_plot_too(tmp_path: Path) -> None:
    plot_runs(tmp_path, {"": [RequestOutcome(e2e_s=1.0, error="timeout")]})
    assert "TTFT" in (tmp_path / "distribution.svg").read_text()


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CliError, match="file"):
        plot_runs(tmp_path / "file" / "plots", {"": outcomes(3)})
