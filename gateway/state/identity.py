"""The identity of an installation's state: a marker in the data directory, and its id.

The marker `state.id` holds a random id. The state holds the same id, in a file (`sqlite.database`)
or in Redis (`redis.identity`). `limits.id` is the marker of the limits. An empty, lost or exchanged
state is therefore never taken for a first start. An older backup of the same state has the same id,
and is accepted.
"""

import secrets
from dataclasses import dataclass
from pathlib import Path

from gateway.state.faults import Fault, Kept, another, gone
from gateway.state.private_file import FileMissing, PrivateFileDamaged, create_private, read_private

KEYS_FILE = "keys.env"  # file that a first start writes at its end, when state exists


class WrongState(Exception):
    """The error of state that is empty, exchanged or unfit. The message names a remedy."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.reason)
        self.fault = fault


@dataclass(frozen=True, slots=True)
class ExpectedState:
    """The state that a start expects.

    The state has this `id`, if the id is known. The state is not empty if `was_there`.
    """

    what: Kept
    name: str
    id: str | None = None
    was_there: bool = False

    def settled(self, found: str | None, *, is_empty: bool) -> str:
        """Return the state's id from now on, given the id that was `found` in it.

        Raises WrongState for an unexpected state. A state with content and without an id comes from
        a release that gave no ids.
        """
        if found is None:
            if is_empty and self.was_there:
                raise WrongState(gone(self.what, self.name))
            return self.id or secrets.token_hex(16)
        if self.id is not None and found != self.id:
            raise WrongState(another(self.what, self.name, marker_name(self.what)))
        return found


def expected(data_dir: Path, what: Kept, name: str) -> ExpectedState:
    """Read the expected state from its marker.

    Without a marker, the keys of a completed first start show that state is expected.
    """
    known = _read(data_dir, what)
    is_done = what == "state" and (data_dir / KEYS_FILE).exists()
    return ExpectedState(what, name, known, known is not None or is_done)


def remember(data_dir: Path, what: Kept, found: str) -> None:
    """Write the marker of state `what`, unless it exists; raise OSError."""
    if not (data_dir / marker_name(what)).exists():
        create_private(data_dir / marker_name(what), f"{found}\n".encode())


def forget(data_dir: Path, what: Kept) -> None:
    """Remove the marker, so that no state is expected; raise OSError."""
    (data_dir / marker_name(what)).unlink(missing_ok=True)


def marker_name(what: Kept) -> str:
    """Return the marker's file name."""
    return f"{what}.id"


def _read(data_dir: Path, what: Kept) -> str | None:
    """Read the id in a marker, or return None.

    Raises FileExposed or PrivateFileDamaged.
    """
    path = data_dir / marker_name(what)
    try:
        found = read_private(path).decode("ascii", "replace").strip()
    except FileMissing:
        return None
    if len(found) != 32 or not found.isalnum():
        raise PrivateFileDamaged(f"{path} is damaged. Delete it if {what} is the one you expect")
    return found
