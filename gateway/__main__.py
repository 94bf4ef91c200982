"""`python -m gateway CONFIG_JSON`: the gateway process."""

import gc
import sys

if __name__ == "__main__":
    gc.disable()  # imported modules stay: collecting garbage in them takes a tenth of the start
    from gateway.startup.main import main

    gc.freeze()
    gc.enable()
    sys.exit(main(sys.argv[1:]))
