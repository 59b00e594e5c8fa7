"""Objectives, optimisers, and the training loop."""
