"""The process as the operating system sees it: core dumps, log lines, freed memory."""
