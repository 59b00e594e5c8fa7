"""Layers over the source-target grid of Pervasive Attention (chapter 3)."""
