"""Layers that the models consist of."""
