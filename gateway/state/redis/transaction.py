"""A change to Redis as data, applied by one script: conditions, and writes made if all hold.

The server runs one script at a time, so a transaction is applied completely or not at all. A
transaction takes one round trip. WATCH and MULTI would take four, and a separate connection. A
change that depends on stored data first reads the data. Its transaction then has the data as a
condition. A full or read-only Redis refuses a script at its first write, so no change is half
applied.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.errors import GatewayError

Command = list[str | bytes]
Reply = bytes | int  # byte replies are never empty

# The arguments are one flat list: a count before every list, and the expected reply after each
# condition's command. The result is the number of the condition that fails, or 0.
_SCRIPT = """
local at = 0
local function take() at = at + 1 return ARGV[at] end
local function command()
    local words = {}
    for i = 1, tonumber(take()) do words[i] = take() end
    return words
end
for number = 1, tonumber(take()) do
    local found = redis.call(unpack(command()))
    if (found and tostring(found) or '') ~= take() then return number end
end
%s
for _ = 1, tonumber(take()) do redis.call(unpack(command())) end
return 0
"""
SCRIPT = _SCRIPT % ""
NO_ROOM = -1  # the script's result when there is too little room (`with_room`)


def with_room(make_room: str) -> str:
    """Insert the Lua code `make_room`, which may return NO_ROOM, between conditions and writes."""
    return _SCRIPT % make_room


class Changed(Exception):
    """The error of a transaction whose data have changed since they were read."""


@dataclass(slots=True)
class Transaction:
    """The checks and writes of a change, in order. A failed check raises its own error."""

    _writes: list[Command] = field(default_factory=list)
    _checks: list[tuple[Command, Reply, GatewayError | None]] = field(default_factory=list)

    def expect(self, command: Command, reply: Reply, otherwise: GatewayError | None = None) -> None:
        """Write only if `command` gives `reply`. If not, raise `otherwise`, by default Changed."""
        self._checks.append((command, reply, otherwise))

    def write(self, *command: str | bytes) -> None:
        """Run `command` if every expectation holds."""
        self._writes.append([*command])

    def error_of(self, number: int) -> GatewayError | None:
        """Return the error of the expectation with this number, counted from 1."""
        return self._checks[number - 1][2]

    def arguments(
        self, ask: Command, state_id: str, room: Sequence[str | bytes] = ()
    ) -> list[str | bytes]:
        """Return the script's arguments. Its first condition is that `ask` gives `state_id`."""
        words: list[str | bytes] = [str(1 + len(self._checks)), str(len(ask)), *ask, state_id]
        for command, reply, _ in self._checks:
            found = str(reply) if isinstance(reply, int) else reply
            words += [str(len(command)), *command, found]
        words += room
        words.append(str(len(self._writes)))
        for command in self._writes:
            words += [str(len(command)), *command]
        return words
