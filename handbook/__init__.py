"""The embedded demo model: its weights in `model`, and handbooks for it to read in `texts`."""
