"""Checkpoints of fairseq and attn2d, read without unpickling."""
