"""Fixture: chat templates that are compiled and probed once."""

from tests.doubles.gateway.templates_once import templates_once  # noqa: F401 (a fixture)
