"""The work under way between two turns of the loop: clients' requests and launched steps."""
