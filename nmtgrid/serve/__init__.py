"""Simultaneous translation over a local HTTP interface, and the page that shows it."""
