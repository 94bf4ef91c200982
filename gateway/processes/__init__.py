"""The gateway's processes, threads and repeated tasks, without the work that they do.

A parent keeps its workers running (`workers.py`), tenants take turns in threads
(`fair_executor.py`), a task is repeated for as long as it is needed (`periodic.py`).

Knows: time and signals. Does not know: requests, engines or the state.
"""
