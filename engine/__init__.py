"""The engine process, which owns the accelerator: queue, schedule, batch, run, sample, settle.

    main        from a config to a process that serves, until its end
    follower    the process of a rank from 1 on, which does what rank 0 says
    startup     the only composer: device, weights, pool, runner, tiers, and the parts of the core
    core        the step
    in_flight   requests and steps between two turns
    queries     what gateways and operators ask and order of the whole cache
    components  the parts that these three are made of
    adapters    LoRA adapters of requests, in host memory and in slots of the device
    exchange    blocks that engines fetch from each other
    grammars    constraints on the next token
    scheduling  which sequences are in the next step, and what its tokens mean
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

Each imports only from those below it. A step (`step.py`) is data: what decides it knows no tensor,
and what computes it knows no sequence.
"""
