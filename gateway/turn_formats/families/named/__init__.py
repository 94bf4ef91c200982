"""The families that write a call as a name, followed by all its arguments."""
