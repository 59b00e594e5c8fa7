"""Datasets of pictures and captions (appendix E)."""
