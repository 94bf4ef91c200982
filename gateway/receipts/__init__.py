"""Receipts of erasures: what was erased of a deleted tenant, signed by the installation.

Anybody who has the installation's public key can verify a receipt, without the installation.
"""
