"""The queries and commands of gateways and operators about the whole cache, and reports."""
