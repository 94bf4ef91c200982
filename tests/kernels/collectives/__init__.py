"""Tests of kernels/collectives/."""
