"""Models that caption pictures (appendix E)."""
