"""Which models are served: a file for each architecture, and the registry that names them all."""
