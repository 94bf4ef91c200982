"""A parent that forks its first workers: `python -m ... DIRECTORY COUNT COMMAND...`.

Each is a fake worker with its files in DIRECTORY. COMMAND executes the workers that replace them.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from msgspec.structs import asdict

from gateway.processes.backoff import Backoff
from gateway.processes.worker_metrics import VARIABLE
from gateway.processes.workers import END_SIGNALS, Workers
from tests.gateway.processes import fake_worker

HASTY = Backoff(first_delay_s=0.01, base_delay_s=0.01, max_delay_s=0.02)


def main(directory: Path, count: int, command: list[str]) -> int:
    metrics = directory / "metrics"
    os.environ[VARIABLE] = str(metrics)
    signal.pthread_sigmask(signal.SIG_BLOCK, END_SIGNALS)  # as `main.py` does, until `run`
    workers = Workers(command, count, metrics, backoff=HASTY)
    config = workers.fork()
    if config is None:
        return asyncio.run(workers.run())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, END_SIGNALS)
    return fake_worker.main(directory, asdict(config))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
