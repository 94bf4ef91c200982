"""The routes `/v1/cache`, with which a tenant probes, warms, lists and deletes cached prefixes."""
