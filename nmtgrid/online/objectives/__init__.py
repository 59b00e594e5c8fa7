"""Objectives that train models and readers for simultaneous translation (section 4.3)."""
