"""`python -m gateway CONFIG_JSON`: the gateway process."""

import gc
import sys

if __name__ == "__main__":
    # imported modules stay in memory; collecting garbage in them takes a tenth of the start time
    gc.disable()
    from gateway.startup.main import main

    gc.freeze()
    gc.enable()
    sys.exit(main(sys.argv[1:]))
