"""The models that are served: a file for each architecture, and the registry of them all."""
