"""`python -m gateway.router_process CONFIG_JSON WORKER_CONFIG_JSON`: the router process."""

import gc
import sys

if __name__ == "__main__":
    gc.disable()  # imported modules stay in memory, so collecting garbage would only slow the start
    from gateway.router_process.main import main

    gc.freeze()
    gc.enable()
    sys.exit(main(sys.argv[1:]))
