"""The usage of requests: measured, added up, stored every second, reported."""
