"""Errors that end a command with one clear line and no traceback.

CliError                exit 1
 |- BadSetting          exit 2  a flag or variable with an unusable value; `flag` names the flag
 |- ModelNotFound       exit 2  MODEL names nothing that can be loaded
 |- ModelRefused        exit 3  the model exists but cannot be served
 |- ServerUnreachable   exit 1  no server answers at the URL
 |- ServerRefused       exit 1  the server answered, with an error
 |- NotRatoon           exit 1  the server at the URL is not Ratoon
 `- ServingFailed       exit 1  a process that `ratoon serve` watches could not be kept alive
"""


class CliError(Exception):
    """The base of the errors that a command reports instead of a result."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class BadSetting(CliError):
    """A flag, or its environment variable, with an unusable value."""

    exit_code = 2

    def __init__(self, flag: str, message: str) -> None:
        super().__init__(f"{flag}: {message}")
        self.flag = flag


class ModelNotFound(CliError):
    """A MODEL argument for which no model can be loaded."""

    exit_code = 2


class ModelRefused(CliError):
    """A model that exists but cannot be served.

    The message is empty if a child process has printed the reason.
    """

    exit_code = 3


class ServerUnreachable(CliError):
    """A URL at which no server answers."""


class ServerRefused(CliError):
    """A request that the server answered with an error. `status` is the HTTP status."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class NotRatoon(CliError):
    """A server that is not Ratoon, because Ratoon never gives such an answer."""

    def __init__(self, url: str) -> None:
        super().__init__(f"the server at {url} is not Ratoon; is the URL right?")


class ServingFailed(CliError):
    """A process of `ratoon serve` that could not be kept alive."""
