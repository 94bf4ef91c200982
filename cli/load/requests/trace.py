"""A request trace: a JSON line for each request, with time, sizes and block ids.

    {"timestamp": 3000, "input_length": 2012, "output_length": 354, "hash_ids": [0, 427, 428, 429]}

    timestamp       ms since the trace began; lines are in this order
    input_length    tokens of the prompt
    output_length   tokens of the answer
    hash_ids        one id for each block of the prompt; the last block may be partial; two prompts
                    whose first n ids are equal have equal tokens in these n blocks
    tenant          optional; equal ids of different tenants mean different tokens

A trace that names no tenants can be divided among tenants by session. All requests of a trace may
begin with some common blocks. A session is all requests whose next block, after these blocks, has
the same id. Each session gets one tenant, drawn with a fixed seed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Annotated, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from cli.errors import CliError
from cli.json_text import NotJson, decode_json

DEFAULT_TENANT = "default"
_SEED = 1
TenantSizes = Literal["equal", "zipf"]
Count = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(gt=0)]


class BadTrace(CliError):
    """A trace that cannot be read. The message names the line."""

    exit_code = 2


class TraceRow(msgspec.Struct):
    """A line of a trace file. Other fields are ignored."""

    timestamp: Annotated[float, msgspec.Meta(ge=0)]
    input_length: Positive
    output_length: Count
    hash_ids: list[int]
    tenant: Annotated[str, msgspec.Meta(min_length=1)] = DEFAULT_TENANT


@dataclass(frozen=True, slots=True)
class Request:
    """A request to replay. Block ids are numbered from 0 in order of appearance."""

    at: float  # seconds since the trace began
    input_tokens: int
    output_tokens: int
    ids: npt.NDArray[np.int32]  # an id for each block; the last block may be partial
    tenant: str


@dataclass(frozen=True, slots=True)
class BlockTrace:
    """Requests in the order of their arrival times."""

    requests: tuple[Request, ...]
    block_size: int

    @property
    def num_blocks(self) -> int:
        """The number of blocks of all prompts."""
        return sum(len(request.ids) for request in self.requests)

    @property
    def tenants(self) -> list[str]:
        """The tenants of all requests."""
        return sorted({request.tenant for request in self.requests})


def read_trace(path: Path, block_size: int) -> BlockTrace:
    """Read a trace with one id for each block of `block_size` tokens. Raises BadTrace."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise BadTrace(f"{path}: {error.strerror}") from error
    dense = dict[int, int]()
    requests: list[Request] = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            row = _decode(line, path, number)
            _check(row, requests[-1] if requests else None, block_size, f"{path}, line {number}")
            requests.append(_request(row, dense))
    if not requests:
        raise BadTrace(f"{path}: there is no request in it")
    return BlockTrace(tuple(requests), block_size)


def among_tenants(trace: BlockTrace, tenants: int, sizes: TenantSizes) -> BlockTrace:
    """Divide the trace's sessions among `tenants` tenants: t1, t2, ...

    Each session's tenant is drawn with equal weights, or by Zipf's law with weights 1, 1/2, 1/3...
    """
    names = [f"t{number}" for number in range(1, tenants + 1)]
    weights = [1.0 if sizes == "equal" else 1.0 / rank for rank in range(1, tenants + 1)]
    random, common = Random(_SEED), _common(trace.requests)
    owner_of: dict[int, str] = {}
    requests = []
    for request in trace.requests:
        session = int(request.ids[min(common, len(request.ids) - 1)])
        if session not in owner_of:
            owner_of[session] = random.choices(names, weights)[0]
        requests.append(replace(request, tenant=owner_of[session]))
    return BlockTrace(tuple(requests), trace.block_size)


def _decode(line: bytes, path: Path, number: int) -> TraceRow:
    try:
        return decode_json(line, TraceRow)
    except NotJson as error:
        raise BadTrace(f"{path}, line {number}: {error}") from error


def _check(row: TraceRow, before: Request | None, block_size: int, where: str) -> None:
    blocks = -(-row.input_length // block_size)
    if len(row.hash_ids) != blocks:
        raise BadTrace(
            f"{where}: {row.input_length} tokens are {blocks} blocks of {block_size}, and there "
            f"are {len(row.hash_ids)} hash_ids"
        )
    if before is not None and row.timestamp < before.at * 1000:
        raise BadTrace(f"{where}: its timestamp is before that of the line above")


def _request(row: TraceRow, dense: dict[int, int]) -> Request:
    """Number a request's ids by first appearance, so that any integers can be ids."""
    ids = [dense.setdefault(one, len(dense)) for one in row.hash_ids]
    return Request(
        at=row.timestamp / 1000,
        input_tokens=row.input_length,
        output_tokens=row.output_length,
        ids=np.array(ids, dtype=np.int32),
        tenant=row.tenant,
    )


def faster(trace: BlockTrace, speed: float) -> BlockTrace:
    """Shorten the gaps between the trace's requests by the factor `speed`."""
    requests = tuple(replace(request, at=request.at / speed) for request in trace.requests)
    return BlockTrace(requests, trace.block_size)


def session_blocks(trace: BlockTrace) -> int:
    """Return how many leading blocks the session router needs to tell sessions apart."""
    return _common(trace.requests) + 1


def _common(requests: Sequence[Request]) -> int:
    first, most = requests[0].ids, min(len(request.ids) for request in requests)
    for at in range(most):
        if any(request.ids[at] != first[at] for request in requests):
            return at
    return most
