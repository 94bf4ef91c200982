"""The families that write a call as a name, followed by a tag around each argument."""
