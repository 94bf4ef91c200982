"""The `ratoon` command: flags and environment, configs, processes, and a server's clients.

    main          the commands, listed and explained (`listing`, `help_page`)
    simulation    a cache's hit rate on a trace
    asking, cluster, isolation, lint, load, plan, watching    a folder for each kind of command
    operating     commands for a running server, by its admin routes
    serving       configs and state of a server
    models, supervision    a model's files, and a server's processes
    gguf          a GGUF file described by the JSON files that other models have
    options, output, progress, charts, request_file    flags and files in, lines and plots out
    commands, tables, errors, echo, json_text

Each module imports only modules listed below it. `main` finds a command's module in `commands`.
"""
