"""The attention over latents (multi-head latent attention, arXiv 2405.04434).

In place of keys and values a token keeps a latent c of R numbers and a rotated key of P numbers.
All heads share both. Keys and values are products of c and two matrices. Instead, queries and
outputs can be multiplied by these matrices.

    latent_attention   attention of a step; chooses the way for each row
    absorbed           queries of R + P numbers attend to unchanged latents
    expanded           keys and values are computed from the latents, then usual attention
    write_latents      norm, rotation, the write to the pool
    scratch            memory that both ways take
    latent_shape       sizes, and the products that each way takes
"""
