"""The `ratoon` command: flags and environment, configs, processes, and a server's clients.

    main          the commands, listed and explained (`listing`, `help_page`)
    simulation    what a cache would find of a trace
    asking, cluster, isolation, lint, load, plan, watching    a folder for each kind of command
    operating     commands for a running server, by its admin routes
    serving       configs and state of a server
    models, supervision    a model's files, and a server's processes
    gguf          what a model's GGUF file says, as other models' files say it
    options, output, progress, charts, request_file    flags and files in, lines and plots out
    commands, tables, errors, echo, json_text

Each imports only from those below it. `main` finds a command's module by its name in `commands`.
"""
