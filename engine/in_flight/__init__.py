"""The work under way between two turns of the loop: messages, requests and launched steps."""
