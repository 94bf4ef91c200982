"""In a divided cache, a flow with a small max_request_tokens leaves larger parts to others."""

from __future__ import annotations

from engine.link.messages import FlowQuota, Partition
from storage.move import Tier
from tests.engine.rigs.rig import Rig


def parts(longest: int) -> dict[str, float]:
    rig = Rig(num_blocks=128, max_batch_tokens=64, context_len=200)
    short = FlowQuota(ceiling=0.1, max_request_tokens=longest)
    rig.link.say(Partition(flows={"long": FlowQuota(), "short": short}))
    rig.step()
    return rig.core.components.cache.capacity.quota_usages[Tier.DEVICE].shares()


def test_a_flow_with_short_requests_leaves_more_to_the_others() -> None:
    whole, size = 128, 4
    context, least = 200 // size, whole // 16
    area = -(-(context - 0.1 * whole) // 0.9)
    for longest, blocks in ((0, area), (10**6, area), (32, least)):
        assert parts(longest)["long"] == int(0.9 * (whole - blocks)), longest
