"""Presets: one file for each architecture, and what a preset is (`preset`)."""
