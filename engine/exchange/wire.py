"""The messages between an engine that asks for KV blocks of a prompt and the engine that answers.

    asking                          answering
    Ask ->                                              a prompt, and its first wanted block
                                 <- Found               the number of blocks found
                                 <- Block 7 | payload   sealed (`seal`)
                                 <- Block 8 | payload
                                 <- Block 9 | payload   the state after block 8, if any, in units
                                                        as long as a block
    Taken 8 ->                   <- Still               more may be sent; both engines are alive
                                 <- Ended               no more blocks will come

Between GPUs of one host, no payload is sent. `Found` has a handle of the sender's pool, and `Slots`
has the blocks' slots in that pool. The asker copies the blocks from there. The copies become valid
when a `Still` confirms that the sender still held the blocks. A namespace is sent only as a digest,
so no message lets its reader decrypt a block.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec

MAX_FRAME_BYTES = 8 << 20  # maximum bytes of a message without payload; 1M token ids take 4 MB
SALT_BYTES = 16
SLOT_BYTES = 4
WINDOW_BYTES = 64 << 20  # maximum bytes of sent, unconfirmed blocks for one `Ask`
LEAST_WINDOW = 4
MOST_TEXT = 512  # maximum characters of a label or a reason, which are logged

Text = Annotated[str, msgspec.Meta(max_length=MOST_TEXT)]

_Message = TypeVar("_Message")


class Ask(msgspec.Struct, frozen=True, kw_only=True, tag="ask"):
    """A request for a prompt's cached blocks. The asker already has the `first` blocks."""

    number: int  # id of the fetch, unique among the connection's running fetches
    fingerprint: bytes
    salt: bytes  # SALT_BYTES random bytes
    spans: tuple[tuple[int, bytes], ...] = ()  # (first block, hashed name) of each namespace
    token_ids: bytes = b""  # tokens of whole blocks from position 0, int32, little endian
    first: int
    window: int  # maximum number of sent, unconfirmed blocks; 1 to `window_of`
    flow: str = ""  # name of the flow for which the sender loads blocks

    # The id of the request that is computing the prompt on the sender, if any. The sender then also
    # sends the blocks that this request has yet to compute.
    request_id: str | None = None
    # The id of the asker's host if the asker can open GPU pools of that host, else None.
    host: bytes | None = None


class Taken(msgspec.Struct, frozen=True, tag="taken"):
    """A confirmation that the first `blocks` blocks have arrived. Also sent as a keepalive."""

    number: int
    blocks: int


class Leave(msgspec.Struct, frozen=True, tag="leave"):
    """A message of the asker: it wants no more blocks."""

    number: int


class PoolHandle(msgspec.Struct, frozen=True, array_like=True):
    """A handle of a GPU pool that another process of this host can open (`peer_pool`)."""

    handle: bytes
    offset: int
    num_blocks: int


class Found(msgspec.Struct, frozen=True, kw_only=True, tag="found"):
    """An announcement: the prompt's first `blocks` blocks are sent. A later one may add blocks."""

    number: int
    salt: bytes
    blocks: int
    first_reads: dict[Text, int] = {}
    pool: PoolHandle | None = None
    state_units: int = 0  # number of units of the recurrent state, sent after the blocks


class Block(msgspec.Struct, frozen=True, tag="block"):
    """The block at `position`. Blocks are sent in order. The payload is the next frame."""

    number: int
    position: int


class Slots(msgspec.Struct, frozen=True, kw_only=True, tag="slots"):
    """The slots, in the sender's pool, of the blocks that follow the `first` blocks.

    All these blocks have one namespace, and are leased until the asker confirms them.
    """

    number: int
    first: int
    slots: bytes  # int32, little endian
    seal: bytes  # authentication tag of the slots, SEAL_BYTES


class Still(msgspec.Struct, frozen=True, tag="still"):
    """A reply to `Taken`. It says that the confirmed blocks were leased until now."""

    number: int
    blocks: int


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """The end of an answer. With `is_all`, all wanted blocks that are available have been sent."""

    number: int
    why: Text
    is_all: bool


ToSource = Ask | Taken | Leave
FromSource = Found | Block | Slots | Still | Ended


def window_of(block_bytes: int) -> int:
    """Return the maximum number of sent, unconfirmed blocks for one `Ask`."""
    return max(WINDOW_BYTES // block_bytes, LEAST_WINDOW)


class WireError(ValueError):
    """An error: the bytes are not a valid message."""


class ExchangeCodec:
    """A codec of the messages of both directions. Used by one thread only."""

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._to_source: msgspec.msgpack.Decoder[ToSource] = msgspec.msgpack.Decoder(ToSource)
        self._from_source: msgspec.msgpack.Decoder[FromSource] = msgspec.msgpack.Decoder(FromSource)

    def encode(self, message: ToSource | FromSource) -> bytes:
        """Encode a message as one frame."""
        return self._encoder.encode(message)

    def decode_to_source(self, frame: bytes | memoryview) -> ToSource:
        """Decode an asker's message. Raises WireError, and no other error, for invalid bytes."""
        return _decode(self._to_source, frame)

    def decode_from_source(self, frame: bytes | memoryview) -> FromSource:
        """Decode a sender's message. Raises WireError, and no other error, for invalid bytes."""
        return _decode(self._from_source, frame)


def _decode(decoder: msgspec.msgpack.Decoder[_Message], frame: bytes | memoryview) -> _Message:
    if len(frame) > MAX_FRAME_BYTES:
        raise WireError(f"a frame of {len(frame)} bytes; {MAX_FRAME_BYTES} are allowed")
    try:
        return decoder.decode(frame)
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        # msgspec's error may quote the frame, which contains a prompt.
        raise WireError(f"not a message: {type(error).__name__}") from None
