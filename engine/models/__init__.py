"""The decoders: config readers for Hugging Face directories, and the forward pass.

    checks, decoder    whether a model can be served; the forward pass
    shortened_decoder  fewer layers that launch all kernels; memories: each layer's memory in a step
    adapters           LoRA adapters beside a decoder's matrices
    checkpoints        tensors in files, and the part of each tensor that a rank reads
    parameters         all tensors of a decoder
    architectures, shards, stages    readers of config.json; sizes of a rank and of a stage
    eos, config        description of a model, read before any tensor
    layers             attention, MLPs and norms: their configs and their computation
    weight_formats     formats of matrices in memory and in files
    modules                  what loading, sharding and the forward pass ask of a layer's parts
    rank_group, grid, names, token_marks, lfs_pointers, errors
    model_files       reading of files that are not trusted

Each module imports only from the modules below it.
"""
