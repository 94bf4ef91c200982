"""Client frameworks against the running gateway; each is skipped if it is not installed.

`make test-clients` installs them (`requirements/clients.in`, and node packages if npm exists) and
runs these tests. Node packages are searched for in `CLIENTS_NODE_MODULES`.
"""
