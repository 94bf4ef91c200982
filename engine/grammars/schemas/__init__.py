"""The JSON schemas that llguidance can follow, equivalent to the client's JSON schemas."""
