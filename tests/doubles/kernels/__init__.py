"""Doubles that run kernels on a CPU or check their inputs."""
