"""The queries and orders of gateways and operators on the whole cache, and reports."""
