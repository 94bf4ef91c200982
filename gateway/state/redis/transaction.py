"""A change to Redis as data: conditions, and what to write if they hold; applied by one script.

Scripts run one at a time on the server, so a transaction is applied completely or not at all, in
one round trip (WATCH and MULTI would take four, and a connection of their own). A change that
depends on stored data reads it first and makes its transaction conditional on it. When Redis is
full or read-only it refuses a script at its first write, so even then nothing is applied by half.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.errors import GatewayError

Command = list[str | bytes]
Reply = bytes | int  # of bytes, never empty ones

# The arguments are in one flat list: a count before every list, and after the command of a
# condition the reply that is expected. The result is the number of the condition that fails, or 0.
SCRIPT = """
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
for _ = 1, tonumber(take()) do redis.call(unpack(command())) end
return 0
"""


class Changed(Exception):
    """The data that a transaction was made from has changed: read it again."""


@dataclass(slots=True)
class Transaction:
    """The checks and writes, in order. A failed expectation raises the error given with it."""

    _writes: list[Command] = field(default_factory=list)
    _checks: list[tuple[Command, Reply, GatewayError | None]] = field(default_factory=list)

    def expect(self, command: Command, reply: Reply, otherwise: GatewayError | None = None) -> None:
        """Write only if `command` gives `reply`; without an error given, Changed is raised."""
        self._checks.append((command, reply, otherwise))

    def write(self, *command: str | bytes) -> None:
        """Run `command` if every expectation holds."""
        self._writes.append([*command])

    def error_of(self, number: int) -> GatewayError | None:
        """Return the error of the expectation of this number, from 1."""
        return self._checks[number - 1][2]

    def arguments(self, ask: Command, state_id: str) -> list[str | bytes]:
        """Write the script's arguments; the first condition is that `ask` gives `state_id`."""
        words: list[str | bytes] = [str(1 + len(self._checks)), str(len(ask)), *ask, state_id]
        for command, reply, _ in self._checks:
            found = str(reply) if isinstance(reply, int) else reply
            words += [str(len(command)), *command, found]
        words.append(str(len(self._writes)))
        for command in self._writes:
            words += [str(len(command)), *command]
        return words
