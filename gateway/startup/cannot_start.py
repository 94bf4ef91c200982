"""The error of a start that cannot go on."""


class CannotStart(Exception):
    """The error of a start whose files are missing, damaged or exposed, or lack space."""
