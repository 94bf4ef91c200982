"""Frameworks that people use, against the running gateway; skipped where one is not installed.

`make test-clients` installs them (`requirements/clients.in`, and node's where there is npm) and
runs these tests. Node's are looked for where `CLIENTS_NODE_MODULES` says.
"""
