"""Image captioning models (appendix E)."""
