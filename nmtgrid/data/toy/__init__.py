"""The embedded toy corpus: two invented languages, and toy pictures."""
