"""The files in which workers share their metrics, for the workers' parent.

prometheus_client writes and reads these files in the workers.
"""

from pathlib import Path

# environment variable that prometheus_client reads when it is imported
VARIABLE = "PROMETHEUS_MULTIPROC_DIR"


def end_gauges(pid: int, directory: Path) -> None:
    """Remove a dead worker's gauges of running things, as `mark_process_dead` does.

    The worker's counters stay, so that the workers' sums never fall.
    """
    for file in directory.glob(f"gauge_live*_{pid}.db"):
        file.unlink()
