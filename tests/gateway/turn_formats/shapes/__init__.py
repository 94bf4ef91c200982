"""Tests of gateway/turn_formats/shapes/."""
