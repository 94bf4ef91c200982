"""The `ratoon` command: flags and environment, configs, processes, and a server's clients."""
