"""Decoders described by their configs: reading a Hugging Face directory, computing logits.

    checks, decoder    whether it can be served; the forward pass
    shortened_decoder  fewer layers with all kernels; memories: of layers in a step
    adapters           LoRA adapters beside a decoder's matrices
    checkpoints        tensors in files, and which part of each a rank reads
    parameters         all tensors of a decoder
    architectures, shards, stages    config.json of each; the sizes that a rank, and a stage, has
    eos, config        what a model is, before any tensor is there
    layers             attention, MLPs and norms: what they are as data, and what they compute
    weight_formats     how matrices are kept
    modules            what loading, sharding and the forward pass ask of a layer's parts
    rank_group, grid, names, token_marks, lfs_pointers, errors
    model_files        the reading of descriptions that somebody else wrote

Each imports only from those below it.
"""
