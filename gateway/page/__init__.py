"""The operator's page at `/admin/ui` and the tenant's at `/usage`: their files, their sessions,
and the data of a tenant's page. The data of the operator's page is in `gateway/overview`.
"""
