"""Architectures with experts in all or some of their models, some with latent attention."""
