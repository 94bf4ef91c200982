"""The gateway's state and the sharing of the cache, opened before the gateway serves."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from engine.link.interface import Engine
from gateway.auth.keyring import Keyring
from gateway.config import GatewayConfig, cores, default_workers
from gateway.limits.home import LimitsHome, open_limits
from gateway.prompts.model_chats import ModelChats
from gateway.prompts.prefix_tokens import PrefixTokens
from gateway.replicas.flushes import FlushReader
from gateway.sharing.flushing import Flushing
from gateway.sharing.namespaces import Namespaces, PublishedIndex
from gateway.sharing.partitions import Partitions
from gateway.sharing.published import Published, PublishedParts
from gateway.startup.start_files import StartFiles, needed_to_start, read_start_files
from gateway.state.home import Home, open_home
from gateway.state.reserved_room import ReservedRoom


@dataclass(frozen=True, slots=True)
class KeptState:
    """The state of a gateway, in files or in Redis."""

    files: StartFiles
    room: ReservedRoom
    home: Home
    limits: LimitsHome


@dataclass(frozen=True, slots=True)
class SharedCache:
    """The callers' keys, and the namespaces, partitions and prefixes that tenants share."""

    keyring: Keyring
    namespaces: Namespaces
    published: Published
    partitions: Partitions
    flushing: Flushing


async def open_state(
    config: GatewayConfig,
    stack: AsyncExitStack,
    on_lost: Callable[[], None],
    chats: ModelChats | None,
) -> KeptState:
    """Open the state. `stack` closes it. Raises CannotStart for bad files.

    `on_lost` is called for each charge that is lost. Without `chats`, reads the tokenizer and
    template.
    """
    data_dir = Path(config.data_dir)
    with needed_to_start():
        files = read_start_files(config, chats)
        room = ReservedRoom(data_dir)
        # when the gateway stops, the reserve grows into the space that closing the files has freed
        stack.callback(room.fill)
        home = await stack.enter_async_context(open_home(data_dir, config, room))
        processes = config.gateways * (config.workers or default_workers(cores()))
        limits = open_limits(data_dir, room, home.link, processes=processes, on_lost=on_lost)
    return KeptState(files, room, home, limits)


async def open_sharing(
    config: GatewayConfig,
    state: KeptState,
    engine: Engine,
    flushes: FlushReader,
    stack: AsyncExitStack,
) -> SharedCache:
    """Open the sharing of the cache of `engine`; `stack` closes it."""
    store, files = state.home.store, state.files
    publishing = stack.enter_context(ThreadPoolExecutor(1, "publishing"))
    keyring = Keyring(store, files.secrets.pepper, time.time)
    index = PublishedIndex()
    namespaces = Namespaces(
        files.secrets.server_secret, share_all=config.share_all, published=index
    )
    reader = PrefixTokens(files.tokenizer, files.template)
    published = Published(
        PublishedParts(store, reader.of, reader.text, namespaces, index, engine, publishing)
    )
    are_apart = config.cache_sharing == "partitioned" and not config.share_all
    partitions = Partitions(store, engine, are_wanted=are_apart)
    flushing = Flushing(store, engine, time.time, flushes)
    await stack.enter_async_context(state.home.telling(keyring, published, partitions, flushing))
    await stack.enter_async_context(flushing.kept())
    await stack.enter_async_context(partitions.kept())
    await stack.enter_async_context(published.kept())
    return SharedCache(keyring, namespaces, published, partitions, flushing)
