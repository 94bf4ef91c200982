"""Reads flags and environment, composes the configs, starts and watches the processes."""
