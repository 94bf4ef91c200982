"""Triton kernels, each with a plain PyTorch reference beside it.

    ops            all of them, as a model calls them; `mxfp4`, a format's numbers
    adapters       low-rank products of adapters beside a model's
    latents        attention over latents, from which keys and values are computed
    attention, experts, recurrence, sampling
    norms          norms and gates; some quantise for a product or sum the parts of ranks
    collectives, linear    sums over GPUs' memory; products
    launch         how kernels are compiled and launched
    limits, e4m3, errors

Each imports only from those below it.
"""
