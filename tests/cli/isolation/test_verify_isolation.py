"""`ratoon verify-isolation --tiers` tests the named tiers in order, and refuses other names."""

from __future__ import annotations

import pytest

from cli.errors import BadSetting
from cli.isolation.cases import TierCase
from cli.isolation.verify_isolation import chosen_tiers


def test_tiers_come_in_the_order_of_testing() -> None:
    assert chosen_tiers("disk, device") == (TierCase.DEVICE, TierCase.DISK)
    assert chosen_tiers("evicted,host,") == (TierCase.HOST, TierCase.EVICTED)


@pytest.mark.parametrize("text", ["", ",", "dsik", "device,dsik", "restarted"])
def test_another_word_is_refused_with_the_words_there_are(text: str) -> None:
    with pytest.raises(BadSetting) as refusal:
        chosen_tiers(text)
    assert (
        refusal.value.message == f"--tiers: '{text}' is not a list of device, host, disk, evicted"
    )
