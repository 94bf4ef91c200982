"""The operator's page at `/admin/ui` and the tenant's page at `/usage`.

This folder has the pages' files, their sessions, and the data of a tenant's page.
`gateway/overview` has the data of the operator's page.
"""
