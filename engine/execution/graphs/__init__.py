"""Steps captured once and replayed: one launch from the host in place of several hundred."""
