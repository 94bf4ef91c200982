"""Receipts of a deleted tenant's erasure, signed by the installation.

Anybody who has the installation's public key can verify a receipt.
"""
