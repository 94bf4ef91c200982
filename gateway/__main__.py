"""`python -m gateway CONFIG_JSON`: the gateway process."""

import gc
import sys

if __name__ == "__main__":
    # collecting garbage would take a tenth of the start time, though imported modules are not
    # garbage
    gc.disable()
    from gateway.startup.main import main

    gc.freeze()
    gc.enable()
    sys.exit(main(sys.argv[1:]))
