"""The opening of adapters, on one rank or several: reader, host memory and slots.

Elsewhere: the requests that use adapters (`engine.adapters`).
"""

from __future__ import annotations

from pathlib import Path

from engine.adapters.adapter_reader import AdapterReader
from engine.adapters.adapters import AdapterParts
from engine.adapters.host_adapters import HostAdapters
from engine.adapters.other_ranks import OtherRanksAdapters, RanksSlots
from engine.adapters.rank_adapters import RankAdapters
from engine.config import EngineConfig
from engine.models.adapters.adapted import AdapterSlots
from engine.offload.placement import GIB
from engine.ranks.leader import Ranks
from engine.ranks.runner import RanksRunner
from engine.step import Runner


def open_adapters(
    config: EngineConfig, slots: AdapterSlots | None, runner: Runner | None, team: Ranks | None
) -> AdapterParts | None:
    """Open the adapters on all ranks, or return None if there are no slots.

    `runner` is the runner of all ranks.
    """
    reader, most_bytes = _reader(config, slots), int(config.model.adapter_host_gib * GIB)
    if slots is None or reader is None:
        return None
    if team is None:
        return AdapterParts(HostAdapters(reader, most_bytes), slots)
    assert isinstance(runner, RanksRunner), "several ranks have a runner of all"
    others = OtherRanksAdapters(team.others)
    of_all = RanksSlots(slots, others, runner.catch_up)
    return AdapterParts(HostAdapters(reader, most_bytes, others), of_all)


def open_rank_adapters(config: EngineConfig, slots: AdapterSlots | None) -> RankAdapters | None:
    """Open the adapters on a rank other than 0, or return None if there are no slots."""
    reader = _reader(config, slots)
    return None if slots is None or reader is None else RankAdapters(reader, slots)


def _reader(config: EngineConfig, slots: AdapterSlots | None) -> AdapterReader | None:
    folder = config.model.adapters_dir
    return None if slots is None or folder is None else AdapterReader(Path(folder), slots.fits)
