"""Layers of the Transformer (section 2.6.3) and of its early exits (chapter 5)."""
