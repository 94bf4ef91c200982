"""The attention over latents (multi-head latent attention, arXiv 2405.04434).

Instead of keys and values, a latent c of R numbers and a rotated key of P numbers are stored for
each token. All heads share both. Keys and values are products of c with two matrices. It is
equivalent to multiply queries and outputs by these matrices instead.

    latent_attention   attention of a step; chooses the method for each row
    attend_latents     absorbed: queries of R + P numbers attend to unchanged latents
    portable_latents   its kernel for any device
    hopper_latents     its kernel for Hopper, with the warps of `hopper_latent_warps`
    query_blocks       the division of queries and latents among programs of both kernels
    expanded           keys and values are computed from the latents, then ordinary attention
    write_latents      norm, rotation, writing to the pool
    scratch            memory that both methods need
    latent_shape       sizes, and the number of multiplications of each method
"""
