"""The steps that are captured once and replayed, with one launch in place of several hundred."""
