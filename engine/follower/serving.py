"""The process of a rank from its first message to its end.

Rank 0 loads its part of the model with the same code, so all ranks have the same sizes and capture
their graphs in the same order.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack, closing

from engine.exchange.ranks_units import RankUnits
from engine.exchange.units import DeviceUnits
from engine.follower.follower import Follower, RankParts
from engine.models.errors import ModelError, ModelNotServed
from engine.process import EXIT_BROKEN, EXIT_CANNOT_START, EXIT_NOT_SERVED, EXIT_STOPPED
from engine.ranks.collectives import RankLeft, Rendezvous
from engine.ranks.groups import meet
from engine.ranks.messages import ENCODER, STARTS, NotStarted, RankMessage, Start, Started
from engine.ranks.ring import RingReader
from engine.startup.adapters import open_rank_adapters
from engine.startup.loading import open_part
from engine.startup.memory.enough_memory import enough_memory
from engine.startup.memory.lower_tiers import host_ahead, open_tiers
from engine.startup.metadata import read_metadata
from storage.disk.wire import Channel, WireBroken

_log = logging.getLogger(__name__)


def serve(channel: Channel) -> int:
    """Run the rank that the first message describes, and return the exit status."""
    content = channel.receive()
    if content is None:
        return EXIT_CANNOT_START
    start = STARTS.decode(content)
    ring = RingReader(start.ring)
    with ExitStack() as opened:
        try:
            with enough_memory():
                parts = opened_rank(start, opened)
        except (ModelError, OSError) as error:
            is_refused, why = isinstance(error, ModelNotServed), " ".join(str(error).split())
            _send(channel, NotStarted(why, is_refused))
            return EXIT_NOT_SERVED if is_refused else EXIT_CANNOT_START
        except RankLeft as error:
            return _left(error)
        _send(channel, Started())
        try:
            Follower(parts, ring, channel).run()
        except WireBroken:
            _log.error("this rank ends: rank 0 is gone")
            return EXIT_BROKEN
        except RankLeft as error:
            return _left(error)
    return EXIT_STOPPED


def _left(error: RankLeft) -> int:
    _log.error("this rank ends: another one is gone (%s)", error)
    return EXIT_BROKEN


def opened_rank(start: Start, opened: ExitStack) -> RankParts:
    """Load a rank's part of the model, and open its tiers. Raises ModelError, OSError, RankLeft."""
    config, rank = start.config, start.rank
    metadata = read_metadata(config, rank=rank)
    place = Rendezvous(start.rendezvous, rank, config.ranks.num_ranks)
    groups = opened.enter_context(
        closing(meet(place, metadata.grid, metadata.stage, metadata.device))
    )
    block_bytes, device, share = metadata.layout.block_bytes, metadata.device, metadata.share
    ahead = opened.enter_context(
        host_ahead(config, block_bytes, device, share=share, state_blocks=metadata.state_blocks)
    )
    part = open_part(config, metadata, groups)
    opened.callback(part.close)
    num_blocks, fingerprint = part.sizes.num_blocks, part.fingerprint
    tiers = open_tiers(
        config, part.pool, num_blocks, fingerprint, ahead, groups, share, part.states
    )
    opened.enter_context(closing(tiers))
    adapters = open_rank_adapters(config, part.adapter_slots)
    if adapters is not None:
        opened.callback(adapters.close)
    units = RankUnits(DeviceUnits(part.pool, part.states), rank)
    return RankParts(part.runner, tiers.lower.mover, tiers.disk, units, adapters)


def _send(channel: Channel, message: RankMessage) -> None:
    channel.send(ENCODER.encode(message))
