"""One process owns the accelerator: queue, schedule, batch, run, sample, settle."""
