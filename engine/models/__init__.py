"""The models: readers of Hugging Face directories, and the forward pass of decoders.

    checks, forward    the check whether a model can be served; the forward pass
    adapters           LoRA adapters, which add to the products of a decoder's matrices
    checkpoints        tensors in files, and the part of each tensor that a rank reads
    parameters         all tensors of a decoder
    served, shards, stages    readers of config.json by name; sizes of a rank and of a stage
    architectures      families of models: their config.json, layers and names of tensors
    eos, config        description of a model, read before any tensor
    layers             attention, MLPs and norms: their configs and their computation
    weight_formats     formats of matrices in memory and in files
    modules           interfaces of a layer's parts for loading, sharding and the forward pass
    rank_group, grid, names, token_marks, lfs_pointers, errors
    model_files       reading of untrusted files

Each module imports only from the modules below it.
"""
