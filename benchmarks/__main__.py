"""`python -m benchmarks`: all of them."""

import typer

from benchmarks.everything import main

typer.run(main)
