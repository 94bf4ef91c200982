import pytest

from cli.cache import plain, sections, show_section

ANSWER = {
    "uptime_s": 12.5,
    "steps": 3,
    "windows": {"1m": {"hit_tokens": 5, "hit_rate": 0.25}, "all": {"hit_tokens": 7}},
    "tree": {"nodes": 4},
    "tenants": [{"id": "t1", "name": "acme"}],
    "nobody": [],
}


def test_single_values_come_first_and_together() -> None:
    found = sections(ANSWER)
    assert list(found) == ["cache", "windows", "tree", "tenants", "nobody"]
    assert found["cache"] == {"uptime_s": 12.5, "steps": 3}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("windows", ["hit_tokens", "hit_rate", "1m", "0.25", "all", "7"]),
        ("tree", ["nodes", "4"]),
        ("tenants", ["id", "name", "t1", "acme"]),
    ],
)
def test_each_section_is_a_table(
    name: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    show_section(name, ANSWER[name])
    out = capsys.readouterr().out
    assert all(word in out for word in [name, *words])


def test_an_empty_section_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    show_section("nobody", [])
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.123456, "0.1235"), (12345.678, "12346"), (7, "7"), ("x", "x"), (None, "None")],
)
def test_numbers_as_people_read_them(value: object, text: str) -> None:
    assert plain(value) == ("-" if value is None else text)
