"""The facts that each worker has in memory for the pages, and the sums over all workers.

Elsewhere: how workers are reached (`siblings.py`).
"""

from collections import Counter
from dataclasses import dataclass
from operator import attrgetter

import msgspec

from gateway.auth.running_requests import RunningRequests
from gateway.diagnosis.misses import MOST, LastMisses, Miss
from gateway.http.request_head import RunningRequest
from gateway.overview.siblings import Siblings
from gateway.telemetry.refusals import LastRefusals, Refusal, newest


class RefusalsAsked(msgspec.Struct, frozen=True, tag="refusals"):
    """The question that asks a worker for the requests that it has refused."""


class RunningAsked(msgspec.Struct, frozen=True, tag="running"):
    """The question that asks a worker for the tenants' requests that it is answering now."""


class MissesAsked(msgspec.Struct, frozen=True, tag="misses"):
    """The question that asks a worker why a tenant's prompts missed the cache.

    The asked worker records the tenant's misses from then on.
    """

    tenant: str


class WorkerAsked(msgspec.Struct, frozen=True, tag="worker"):
    """The question that asks a worker for its process id and start time."""


class ToldRefusals(msgspec.Struct, frozen=True):
    """The latest refusals of a worker, and counts by code since the worker's start."""

    last: list[Refusal]
    by_code: dict[str, int]


class OwnRequest(msgspec.Struct, frozen=True):
    """A request that a worker is answering. `arrived` is in seconds of the monotonic clock."""

    id: str
    tenant_id: str | None
    route: str | None
    arrived: float


class ToldWorker(msgspec.Struct, frozen=True):
    """A worker's process id and start time. `started` is in seconds since the epoch."""

    pid: int
    started: float


_QUESTIONS = msgspec.msgpack.Decoder(RefusalsAsked | RunningAsked | MissesAsked | WorkerAsked)


@dataclass(frozen=True, slots=True)
class Known:
    """The facts that this worker knows, joined with the facts that other workers report."""

    worker: ToldWorker
    kept: LastRefusals
    under_way: RunningRequests
    missed: LastMisses
    siblings: Siblings

    def told(self, question: bytes) -> bytes:
        """Answer another worker's question."""
        return msgspec.msgpack.encode(self._told(_QUESTIONS.decode(question)))

    async def refusals(self) -> ToldRefusals:
        """Ask all workers for their refusals, and list the newest first."""
        heard = await self.siblings.ask(RefusalsAsked(), ToldRefusals)
        told = [self._own_refusals(), *heard.answers]
        last = newest(one for some in told for one in some.last)
        by_code = sum((Counter(some.by_code) for some in told), Counter())
        return ToldRefusals(last, dict(by_code))

    async def requests(self) -> list[OwnRequest]:
        """Ask all workers for the tenants' requests that they are answering."""
        heard = await self.siblings.ask(RunningAsked(), list[OwnRequest])
        return [one for some in (self._own_requests(), *heard.answers) for one in some]

    async def misses(self, tenant_id: str) -> list[Miss]:
        """List a tenant's misses, newest first. All workers record its misses from then on."""
        heard = await self.siblings.ask(MissesAsked(tenant_id), list[Miss])
        told = (self.missed.watch(tenant_id), *heard.answers)
        found = sorted((one for some in told for one in some), key=attrgetter("at"))
        return found[::-1][:MOST]

    async def workers(self) -> tuple[list[ToldWorker], list[int]]:
        """List the workers, this worker first, and the process ids of silent workers."""
        heard = await self.siblings.ask(WorkerAsked(), ToldWorker)
        return [self.worker, *heard.answers], heard.silent

    def _told(self, asked: RefusalsAsked | RunningAsked | MissesAsked | WorkerAsked) -> object:
        match asked:
            case RefusalsAsked():
                return self._own_refusals()
            case RunningAsked():
                return self._own_requests()
            case MissesAsked():
                return self.missed.watch(asked.tenant)
            case WorkerAsked():
                return self.worker

    def _own_refusals(self) -> ToldRefusals:
        return ToldRefusals(self.kept.listed(), dict(self.kept.by_code))

    def _own_requests(self) -> list[OwnRequest]:
        return [_own_request(one) for one in self.under_way if one.tenant_id is not None]


def _own_request(one: RunningRequest) -> OwnRequest:
    return OwnRequest(one.id, one.tenant_id, one.route, one.arrived)
