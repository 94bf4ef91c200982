"""Attention over latents (multi-head latent attention, arXiv 2405.04434).

A token keeps a latent c of R numbers and a rotated key of P that all heads share, in place of keys
and values: these are products of c, of which those of queries and of outputs are taken instead.

    latent_attention   attention of a step; chooses for each row how
    absorbed           queries of R + P numbers attend to latents as they are
    expanded           keys and values are made of the latents, then usual attention
    write_latents      norm, rotation, the write to the pool
    scratch            memory that both take
    latent_shape       sizes, and the products that each takes
"""
