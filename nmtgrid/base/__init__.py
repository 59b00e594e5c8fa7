"""Base layer: errors, configurations, rows of a state, seeds, devices, printing, files."""
