"""The gateway's processes, threads and repeated tasks, without the work that they do.

`workers.py` restarts workers, `fair_executor.py` lets tenants take turns in threads, and
`periodic.py` repeats tasks.
"""
