"""The counters of an engine, which it sends to gateways in `StatsReply`."""
