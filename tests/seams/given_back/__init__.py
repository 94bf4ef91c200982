"""Random tests that users give back every resource, however their waits for the resource end."""
