"""The JSON schemas that the library can follow, equivalent to the client's JSON schemas."""
