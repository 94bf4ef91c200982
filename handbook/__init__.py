"""The embedded demo model: its weights in `model`, and the code that made them in `training`."""
