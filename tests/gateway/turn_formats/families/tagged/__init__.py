"""Tests of gateway/turn_formats/families/tagged/."""
