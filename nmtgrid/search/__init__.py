"""Decoding: one loop for greedy search, beams, sampling, ensembles, policies and early exits."""
