"""Tests, in folders like those of the packages; `seams` tests several packages together."""
