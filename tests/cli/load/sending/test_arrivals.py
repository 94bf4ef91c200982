import json
from itertools import pairwise
from math import inf
from pathlib import Path
from statistics import fmean

import pytest

from cli.errors import BadSetting
from cli.load.sending.arrivals import arrival_times


def recorded(path: Path, *times: object) -> str:
    path.write_text("".join(json.dumps({"timestamp": ms, "x": 1}) + "\n" for ms in times))
    return str(path)


def test_constant() -> None:
    assert arrival_times("constant", 4.0, 4, seed=1) == [0.0, 0.25, 0.5, 0.75]


def test_poisson_has_the_rate_in_the_mean_and_gaps_that_vary_as_much() -> None:
    times = arrival_times("poisson", 10.0, 20_001, seed=1)
    gaps = [b - a for a, b in pairwise(times)]
    assert times[0] == 0.0
    assert fmean(gaps) == pytest.approx(0.1, rel=0.05)
    variance = fmean((gap - 0.1) ** 2 for gap in gaps)
    assert variance == pytest.approx(0.01, rel=0.1)


def test_a_seed_decides() -> None:
    assert arrival_times("poisson", 1.0, 9, 1) == arrival_times("poisson", 1.0, 9, 1)
    assert arrival_times("poisson", 1.0, 9, 1) != arrival_times("poisson", 1.0, 9, 2)


@pytest.mark.parametrize("kind", ["poisson", "constant"])
def test_an_infinite_rate_is_all_at_once(kind: str) -> None:
    assert arrival_times(kind, inf, 3, seed=1) == [0.0] * 3


def test_recorded_times_begin_with_the_first(tmp_path: Path) -> None:
    file = recorded(tmp_path / "t", 3000, 3500, 5000, 9000)
    assert arrival_times(file, None, 3, seed=1) == [0.0, 0.5, 2.0]


def test_recorded_times_are_stretched_to_a_rate(tmp_path: Path) -> None:
    file = recorded(tmp_path / "t", 3000, 3500, 5000)
    assert arrival_times(file, 10.0, 3, seed=1) == pytest.approx([0.0, 0.05, 0.2])
    assert arrival_times(file, inf, 3, seed=1) == [0.0] * 3
    assert arrival_times(file, 10.0, 1, seed=1) == [0.0]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"timestamp": 1}\n', "--requests: 2 is more than the 1 arrivals"),
        ('{"timestamp": 1}\n{}\n', "--arrivals: .*timestamp"),
        ('{"timestamp": -1}\n' * 2, "--arrivals: "),
        ("x\n" * 2, "--arrivals: "),
    ],
)
def test_a_file_that_is_no_trace(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "t").write_text(content)
    with pytest.raises(BadSetting, match=words):
        arrival_times(str(tmp_path / "t"), None, 2, seed=1)


def test_neither_a_kind_nor_a_file() -> None:
    with pytest.raises(BadSetting, match="it is poisson, constant or a file"):
        arrival_times("gamma", 1.0, 2, seed=1)


def test_a_kind_needs_a_rate() -> None:
    with pytest.raises(BadSetting, match="poisson needs --rate"):
        arrival_times("poisson", None, 2, seed=1)
