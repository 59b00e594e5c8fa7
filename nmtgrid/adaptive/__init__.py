"""Depth-adaptive decoding: a token leaves the decoder where it is good enough (chapter 5)."""
