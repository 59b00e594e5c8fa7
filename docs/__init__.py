"""The documentation: Markdown pages, and what is generated of them from the code."""
