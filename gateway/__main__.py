"""`python -m gateway CONFIG_JSON`: the gateway process."""

from __future__ import annotations

import sys

from gateway.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
