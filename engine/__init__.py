"""The engine process, which owns the accelerator: queue, schedule, batch, run, sample, settle.

    main        starts the process from its config, and serves until the process ends
    follower    the process of a rank from 1 on, which carries out rank 0's messages
    startup     builds the objects: device, weights, pool, runner, tiers, components of the core
    core        the loop that runs one step after the other
    in_flight   clients' messages and requests, and launched steps
    queries     queries and commands about the whole cache, from gateways and operators
    components  a record of the core's components
    adapters    LoRA adapters of requests, in host memory and in slots of the device
    exchange    blocks that engines fetch from each other
    grammars    constraints on the next token
    scheduling  the choice of sequences for the next step, and the effects of its tokens
    drafting    tokens to be verified, several in one step
    sequences   a request, with its blocks and its constraint
    ranks       several processes that compute a step together
    copies      copies between tiers, which run concurrently with steps
    execution   batch, forward pass, captured graphs
    sampling    the choice of the next token
    transfers   copies of small arrays to the device, and of results back
    offload     layers whose weights stay in host memory
    models      architectures, weight formats, checkpoints
    process     the loop of the process: signals, grace, exit codes
    config, step, link, errors, system

Each module imports only from the modules below it. A step (`step.py`) is a plain data record. The
scheduler decides a step without using tensors. The runner computes a step without knowing the
sequences.
"""
