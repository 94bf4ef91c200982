"""Random bytes sent to a connection, and the properties that must hold."""
