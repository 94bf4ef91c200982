"""Client frameworks used with a running gateway; tests of frameworks that are not installed are
skipped.

`make test-clients` installs the frameworks (`requirements/clients.in`, and node packages if npm
exists) and runs these tests. Node packages are searched for in `CLIENTS_NODE_MODULES`.
"""
