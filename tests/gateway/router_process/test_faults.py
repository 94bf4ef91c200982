"""A router process that hangs, dies and returns; workers that die; unknown clients."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from gateway.router_process.channel import (
    HEAD_BYTES,
    MAX_FRAME_BYTES,
    MOST_UNSENT_BYTES,
    RouterChannel,
)
from gateway.router_process.client import RETRY, RETRY_S, SILENT_S, RouterClient
from gateway.router_process.main import listening
from gateway.router_process.messages import (
    AskRoute,
    FromRouter,
    KnownBlocks,
    NoteEnded,
    NoteSent,
    ToRouter,
)
from gateway.router_process.own_requests import MOST_TOLD_KEY_BYTES, OwnRequests
from gateway.routing.prompt import RoutingRequest
from gateway.routing.route import Route, RouteQuestion, sent_by
from prefix_cache.hashing import KEY_BYTES
from tests.doubles.waiting import until
from tests.gateway.router_process.rig import (
    LIMITS,
    Office,
    open_office,
    question,
    settled,
    until_read,
)
from tests.gateway.routing.requests import request

SHORT_S = 0.05
SOON_S = 10.0


def asked(number: int, blocks: int = 2) -> RoutingRequest:
    return request(f"r{number}", *((number, at) for at in range(blocks)))


def end(client: RouterClient, sent: RoutingRequest, route: Route) -> None:
    for replica, one in sent_by(sent, route):
        client.ended(replica, one.request_id)


def framed(message: msgspec.Struct) -> bytes:
    frame = msgspec.msgpack.encode(message)
    return len(frame).to_bytes(HEAD_BYTES, "big") + frame


async def is_not_alone(client: RouterClient, number: int) -> bool:
    """Return whether the router process answers a new request of this worker."""
    route = await client.route(question(asked(number)))
    end(client, asked(number), route)
    await settled(client)
    return not route.is_alone


async def test_one_that_stands_still_costs_one_wait_and_knows_all_when_it_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_office(tmp_path, 2, SHORT_S) as (office, (one, other)):
        first = await one.route(question(asked(0)))
        assert not first.is_alone
        office.freeze()
        with caplog.at_level(logging.WARNING):
            routes = await asyncio.gather(*(one.route(question(asked(n))) for n in range(1, 5)))
            waited = next(one._numbers)
            routes += [await one.route(question(asked(n))) for n in range(5, 9)]
            assert next(one._numbers) == waited + 1, "the later ones were not asked for"
        assert all(route.is_alone for route in routes)
        assert {route.answer.replica for route in routes} == {"a", "b"}, "by what it has sent"
        assert [r.message for r in caplog.records if "does not answer" in r.message] == [
            r.message for r in caplog.records
        ]
        assert len(caplog.records) == 1, "it is said once"
        end(one, asked(1), routes[0])
        office.go_on()
        await until(lambda: not one._late, SOON_S)
        await settled(one)
        at = {first.answer.replica: 1, **dict.fromkeys({"a", "b"} - {first.answer.replica}, 0)}
        for route in routes[1:]:
            at[route.answer.replica] += 1
        assert office.running() == at, "where they were sent, not where it would have sent them"
        assert await is_not_alone(one, 20)
        assert await is_not_alone(other, 21)
        for number, route in enumerate([first, *routes[1:]]):
            end(one, asked(number + (number > 0)), route)
        await settled(one)
        assert office.running() == office.queued() == {"a": 0, "b": 0}


async def test_what_it_had_decided_too_late_is_not_left_with_an_engine_of_prompts(
    tmp_path: Path,
) -> None:
    async with open_office(tmp_path, 1, SHORT_S) as (office, (one,)):
        sources = {name: f"/exchange/{name}" for name in "abc"}
        long = asked(0, 30)
        apart = RouteQuestion(long, ("a", "b"), sources, ("c",))
        office.freeze()
        route = await one.route(apart)
        assert route.is_alone
        end(one, long, route)
        office.go_on()
        await until(lambda: not one._late, SOON_S)
        again = RouteQuestion(asked(1, 30), ("a", "b"), sources, ("c",))
        decided = await one.route(again)
        assert not decided.is_alone
        assert decided.prompt is not None, "the control: it would have been computed there"
        assert office.router._loads.of("c").running == 1, "the second one alone"


async def test_one_that_is_gone_is_done_without_and_its_successor_is_told(tmp_path: Path) -> None:
    first = Office(tmp_path / "router.sock")
    client = RouterClient(first.socket, wait_s=SOON_S)
    assert not client.router_answers
    async with listening(first.service, first.socket):
        keeping = client.kept()
        await keeping.__aenter__()
        client._take(KnownBlocks({"a": 3}))
        assert (client.router_answers, client.known_blocks("a")) == (True, 3)
        client._heard_at -= SILENT_S
        assert not client.router_answers, "it would have said something"
        begun, queued = asked(0), asked(1)
        routes = [await client.route(question(one)) for one in (begun, queued)]
        client.began(routes[0].answer.replica, "r0", None, None)
        waits = asyncio.create_task(client.route(question(asked(2))))
        first.freeze()
        await asyncio.sleep(0)
    assert (await asyncio.wait_for(waits, SOON_S)) is not None, "nobody waits for one that is gone"
    alone = await client.route(question(asked(3)))
    assert alone.is_alone
    assert (client.router_answers, client.known_blocks("a")) == (False, 0)
    second = Office(first.socket)
    async with listening(second.service, second.socket):
        await until(lambda: client.router_answers, SOON_S)
        await settled(client)
        assert sum(second.running().values()) == 4
        assert sum(second.queued().values()) == 3 * asked(1).tokens, "one has begun"
        assert await is_not_alone(client, 4)
        await keeping.__aexit__(None, None, None)


async def test_a_socket_that_is_removed_is_made_anew(tmp_path: Path) -> None:
    async with open_office(tmp_path, 1) as (office, (one,)):
        office.socket.unlink()
        late = RouterClient(office.socket, LIMITS, wait_s=SOON_S)
        async with late.kept():
            assert await is_not_alone(late, 1)
            assert await is_not_alone(one, 2), "who was connected is so still"


def test_what_is_told_anew_is_less_than_what_may_wait_to_be_sent() -> None:
    """Repeat fewer bytes to a new connection than may wait to be sent.

    Otherwise each new connection would end as soon as it begins.
    """
    assert MOST_TOLD_KEY_BYTES < MOST_UNSENT_BYTES
    few = OwnRequests(most_told_key_bytes=3 * KEY_BYTES)
    for own in (few, OwnRequests()):
        for number in range(3):
            own.sent("a", asked(number, 2 - number % 2))
    keys = [len(told.request.block_keys) for told in few.told_anew() if isinstance(told, NoteSent)]
    assert keys == [2 * KEY_BYTES, KEY_BYTES, 0]
    told = [told for told in own.told_anew() if isinstance(told, NoteSent)]
    assert [one.request for one in told] == [asked(0, 2), asked(1, 1), asked(2, 2)], "the control"


async def test_one_that_ends_each_connection_is_met_less_and_less_often(tmp_path: Path) -> None:
    """Retry less and less often a router process that ends each connection, as one of another
    version would.
    """

    async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(framed(KnownBlocks({})))
        writer.close()

    client = RouterClient(tmp_path / "router.sock")
    await client._connect()
    assert client._short_connections == 0, "nobody was there"
    async with await asyncio.start_unix_server(refuse, tmp_path / "router.sock"):
        for _ in range(3):
            await asyncio.wait_for(client._connect(), SOON_S)
    assert RETRY.delay(client._short_connections) > 3 * RETRY_S
    client._lose(RouterChannel[FromRouter](FromRouter, lambda _: None), RETRY.healthy_after_s)
    assert RETRY.delay(client._short_connections) == RETRY_S


async def test_the_requests_of_a_worker_end_with_it(tmp_path: Path) -> None:
    async with open_office(tmp_path, 2) as (office, (one, other)):
        for number in range(6):
            await (one if number % 2 else other).route(question(asked(number)))
        assert one._channel is not None
        one._socket = tmp_path / "nobody"
        one._channel.close()
        await until(lambda: sum(office.running().values()) == 3, SOON_S)
        assert sum(office.queued().values()) == 3 * asked(0).tokens
        assert await is_not_alone(other, 9)


async def test_a_question_that_is_given_up_leaves_nothing(tmp_path: Path) -> None:
    async with open_office(tmp_path, 1) as (office, (one,)):
        office.freeze()
        waits = asyncio.create_task(one.route(question(asked(0))))
        await until_read()
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        office.go_on()
        await settled(one)
        assert office.running() == {"a": 0, "b": 0}
        kept = await one.route(question(asked(1)))
        assert sum(office.running().values()) == 1, "the control"
        end(one, asked(1), kept)


STRANGE = {
    "no frames": b"GET / HTTP/1.1\r\n\r\n" * 100,
    "too large": (MAX_FRAME_BYTES + 1).to_bytes(HEAD_BYTES, "big"),
    "no message": framed(msgspec.defstruct("Other", ["x"])(1)),
    "nobody to choose": framed(AskRoute(1, RouteQuestion(asked(0), ()))),
    "a negative prompt": framed(NoteSent("a", RoutingRequest("r", -1))),
    "deep": (64).to_bytes(HEAD_BYTES, "big") + b"\x91" * 64,
}


@pytest.mark.parametrize("said", STRANGE.values(), ids=STRANGE)
async def test_what_is_no_message_ends_its_own_connection_alone(
    tmp_path: Path, said: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_office(tmp_path, 1) as (office, (one,)):
        await one.route(question(asked(1)))
        reader, writer = await asyncio.open_unix_connection(office.socket)
        writer.write(framed(AskRoute(7, question(asked(2)))))
        writer.write(framed(NoteEnded("r1")))  # the request belongs to another worker
        told = await asyncio.wait_for(reader.readuntil(b"routed"), SOON_S)
        assert b"known" in told, "the control: a message is answered"
        assert sum(office.running().values()) == 2
        writer.write(said)
        await asyncio.wait_for(reader.read(), SOON_S)
        writer.close()
        assert "sent no message" in caplog.text
        assert await is_not_alone(one, 3)
        assert sum(office.running().values()) == 1, "its requests have ended, and no others"


async def test_a_worker_that_hears_no_messages_chooses_by_itself(tmp_path: Path) -> None:
    async def chatter(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 9)
        writer.close()

    server = await asyncio.start_unix_server(chatter, tmp_path / "router.sock")
    client = RouterClient(tmp_path / "router.sock")
    connecting = asyncio.create_task(client._connect())
    await asyncio.wait_for(connecting, SOON_S)
    assert (await client.route(question(asked(0)))).is_alone
    server.close()


async def test_what_waits_for_one_that_does_not_read_is_bounded(tmp_path: Path) -> None:
    async with open_office(tmp_path, 1) as (office, _):
        loop = asyncio.get_running_loop()
        few, many = (
            RouterChannel[FromRouter](FromRouter, lambda _: None, most_unsent_bytes=limit)
            for limit in (1 << 20, 1 << 30)
        )
        for channel in (few, many):
            await loop.create_unix_connection(lambda one=channel: one, str(office.socket))  # type: ignore[misc]
        office.freeze()
        for number in range(40):
            for channel in (few, many):
                channel.send(NoteSent("a", asked(number, 8192)))
        await asyncio.wait_for(few.closed.wait(), SOON_S)
        assert not many.closed.is_set(), "the control"
        many.close()


def test_all_that_is_said_is_a_message_of_one_union() -> None:
    """Decode every message of a direction with one decoder, which would refuse a tag used twice."""
    for kind in (ToRouter, FromRouter):
        decoder = msgspec.msgpack.Decoder(kind)
        tags = {one.__struct_config__.tag for one in get_args(kind)}
        assert len(tags) == len(get_args(kind)), decoder
