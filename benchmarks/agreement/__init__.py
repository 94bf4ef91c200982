"""`ratoon bench` beside other load generators, on one server."""
