"""Amounts are printed in the unit that suits their size."""

from __future__ import annotations

import pytest

from cli.plan.units import count, gb, gib, ms, operations


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (gib(15.3 * 2**30), "15.3 GiB"),
        (gib(2_500 * 2**30), "2,500.0 GiB"),
        (gib(12.7 * 2**20), "12.7 MiB"),
        (gib(900), "900 bytes"),
        (gib(0), "0 bytes"),
        (gb(13_300_000), "13.3 MB"),
        (count(8_190_735_360), "8.19 B"),
        (count(6_650_000), "6.65 M"),
        (operations(13.3e6, most="G"), "13.3 M"),
        (operations(16.4e12, most="G"), "16,400.0 G"),
        (operations(6.81e9, 2), "6.81 G"),
        (ms(10.04), "10.0 ms"),
        (ms(0.0045, 2), "4.50 µs"),
        (ms(0.4, 0), "400 µs"),
        (ms(1.4, 0), "1 ms"),
    ],
)
def test_the_largest_unit_of_which_it_is_one_or_more(shown: str, expected: str) -> None:
    assert shown == expected
