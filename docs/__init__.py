"""The documentation: Markdown pages, and the code that generates parts of them."""
