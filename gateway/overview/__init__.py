"""What the operator's page shows of a running server: its last hour, requests, refusals."""
