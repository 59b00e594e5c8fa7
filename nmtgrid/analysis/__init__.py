"""Analyses of translations and models: each returns a section of text, tables, pictures and JSON."""
