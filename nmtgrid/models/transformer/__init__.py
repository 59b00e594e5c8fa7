"""The Transformer (section 2.6.3) with early exits (chapter 5)."""
