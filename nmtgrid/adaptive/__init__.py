"""Depth-adaptive decoding (early exits, chapter 5): objectives, halting and threshold tuning."""
