"""`python -m benchmarks`: runs all benchmarks."""

import typer

from benchmarks.everything import main

typer.run(main)
