"""The states of a client's connection (`connection.py`)."""

from enum import Enum


class State(Enum):
    """The states of a connection, by the event that it waits for."""

    IDLE = "a request"
    HEAD = "the rest of a head"
    BODY = "the rest of a body"
    ANSWERING = "the answer to a request that has come whole"
    DRAINING = "the rest of a body that is of no use: the request is answered"
    ENDED = "the client to close: there will be no other answer"
    CLOSED = "nothing"
