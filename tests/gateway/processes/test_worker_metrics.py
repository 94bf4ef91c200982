"""The removal of a dead worker's files: the same files as prometheus_client removes."""

from pathlib import Path

from prometheus_client import Gauge
from prometheus_client.multiprocess import mark_process_dead

from gateway.processes.worker_metrics import end_gauges

KINDS = [f"gauge_{mode}" for mode in sorted(Gauge._MULTIPROC_MODES)] + ["counter", "histogram"]
PIDS = (7, 77)


def shared_files(directory: Path) -> Path:
    directory.mkdir()
    for kind in KINDS:
        for pid in PIDS:
            (directory / f"{kind}_{pid}.db").touch()
    return directory


def names(directory: Path) -> set[str]:
    return {file.name for file in directory.iterdir()}


def test_the_files_are_removed_that_the_library_removes(tmp_path: Path) -> None:
    ours, theirs = shared_files(tmp_path / "ours"), shared_files(tmp_path / "theirs")
    end_gauges(7, ours)
    mark_process_dead(7, str(theirs))  # type: ignore[no-untyped-call]
    assert names(ours) == names(theirs)
    assert "gauge_livesum_7.db" not in names(ours)
    assert {"gauge_livesum_77.db", "counter_7.db"} <= names(ours)
