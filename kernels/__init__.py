"""Triton kernels, each with a plain PyTorch reference beside it.

    ops            all of them, as a model calls them; `mxfp4`, a format's numbers
    adapters       low-rank products of adapters beside a model's
    latents        attention over latents, of which keys and values are made
    attention, experts, recurrence, sampling
    norms          norms and gates, some of which quantise for a product or add up what ranks have
    collectives, linear    sums over GPUs' memory; products
    launch         how kernels are compiled and launched
    limits, e4m3, errors

Each imports only from those below it.
"""
