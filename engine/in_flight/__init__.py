"""Work under way between two turns of the step: requests of clients, and launched steps."""
