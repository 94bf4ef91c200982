"""The work in progress: clients' messages, running requests and launched steps."""
