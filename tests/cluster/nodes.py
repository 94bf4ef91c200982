"""A real Ray of several nodes on this machine: a process that adds and removes nodes on command.

python -m tests.cluster.nodes 3    three nodes with room for an engine each, beside the head
its first line of output           Ray's address
a line of input: lose PID          the node of Ray's process PID is killed
                 add               one more node
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ray.cluster_utils import Cluster

from tests.doubles.ports import free_port

NODE: dict[str, Any] = {"object_store_memory": 80 << 20, "include_dashboard": False}
# Fixed ports of a node's agents, which Ray would otherwise choose and announce.
PORTS = (
    "metrics_agent_port",
    "metrics_export_port",
    "dashboard_agent_listen_port",
    "runtime_env_agent_port",
)
ROOM = {"num_cpus": 1, "resources": {"room": 1}}


def main(count: int) -> None:
    """Carry out commands from standard input until it is closed."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **node()})
    nodes = [cluster.add_node(**ROOM, **node()) for _ in range(count)]
    print(cluster.address, flush=True)  # noqa: T201
    try:
        for line in sys.stdin:
            match line.split():
                case ["add"]:
                    nodes.append(cluster.add_node(**ROOM, **node()))
                case ["lose", pid]:
                    lost = next(one for one in nodes if _is_of(one, int(pid)))
                    nodes.remove(lost)
                    cluster.remove_node(lost, allow_graceful=False)
            print("done", flush=True)  # noqa: T201
    finally:
        cluster.shutdown()


def node() -> dict[str, Any]:
    """Return the settings with which a node is started."""
    return NODE | {name: free_port() for name in PORTS}


def _is_of(one: Any, pid: int) -> bool:
    """Return whether a process is a worker of the node: a child of its raylet."""
    raylet = one.all_processes["raylet"][0].process.pid
    return f"PPid:\t{raylet}\n" in Path(f"/proc/{pid}/status").read_text()


if __name__ == "__main__":
    main(int(sys.argv[1]))
