"""The Triton kernels. Each has a reference implementation in plain PyTorch.

    ops            the interface through which models call kernels; `mxfp4`, a format of weights
    adapters       low-rank products of adapters, which are added to a model's products
    latents        attention over latents, from which keys and values are computed
    attention, experts, recurrence, sampling
    norms          norms and gates; some also quantise their output, or sum products of ranks
    collectives, linear    sums over GPUs through peer memory; matrix products
    launch         compiling and launching of kernels
    limits, e4m3, errors

The modules of a line import only from the lines below it.
"""
