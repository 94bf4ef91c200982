"""The data of the operator's page about a running server: its last hour, requests, refusals."""
