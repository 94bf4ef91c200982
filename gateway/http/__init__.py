"""HTTP: connections, bodies, the application, health checks."""
