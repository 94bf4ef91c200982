"""Random tests that everything taken is given back, however waits for it end."""
