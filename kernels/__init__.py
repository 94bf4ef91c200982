"""The Triton kernels, each with a plain PyTorch reference beside it.

    ops            all kernels, as a model calls them; `mxfp4`, a format of weights
    adapters       low-rank products of adapters beside a model's
    latents        attention over latents, from which keys and values are computed
    attention, experts, recurrence, sampling
    norms          norms and gates; some quantise for a product or sum the parts of ranks
    collectives, linear    sums over GPUs' memory; products
    launch         how kernels are compiled and launched
    limits, e4m3, errors

Each line's modules import only from the lines below.
"""
