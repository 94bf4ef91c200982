"""The operator's page at `/admin/ui` and the tenant's at `/usage`: their files, their sessions,
and what a tenant reads of itself. What the operator's page shows is in `gateway/overview`.
"""
