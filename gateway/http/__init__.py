"""HTTP: connections, bodies and the memory that they take, the application, health checks."""
