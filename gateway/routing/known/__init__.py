"""The facts that a gateway knows of each replica: its cached blocks, its load, its rates."""
