"""The embedded demo model: its weights in `model`, and in `training` how they were made."""
