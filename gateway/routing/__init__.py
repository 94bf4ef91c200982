"""Which of several engines a request is sent to."""
