"""Loss smoothing: credit for tokens and sentences near the reference (appendix E)."""
