"""The engine process, which owns the accelerator: queue, schedule, batch, run, sample, settle.

    main        from a config to a process that serves, until its end
    follower    the process of a rank from 1 on, which carries out rank 0's messages
    startup     the only composer: device, weights, pool, runner, tiers, and the parts of the core
    core        the step
    in_flight   clients' messages and requests, and launched steps
    queries     queries and orders on the whole cache, from gateways and operators
    components  the parts of the core, as a record
    adapters    LoRA adapters of requests, in host memory and in slots of the device
    exchange    blocks that engines fetch from each other
    grammars    constraints on the next token
    scheduling  the choice of sequences for the next step, and the effects of its tokens
    drafting    tokens to be verified, several in one step
    sequences   a request, with its blocks and its constraint
    ranks       several processes that compute a step together
    copies      copies between tiers beside the steps
    execution   batch, forward pass, captured graphs
    sampling    the next token
    transfers   small arrays to the device, and results back
    offload     layers whose weights stay in host memory
    models      architectures, weight formats, checkpoints
    process     the loop of the process: signals, grace, exit codes
    config, step, link, errors, core_dumps

Each module imports only from the modules below it. A step (`step.py`) is data. The scheduler, which
decides a step, knows no tensors, and the runner, which computes the step, knows no sequences.
"""
