"""Analyses of translations and models: each returns text, tables, pictures and JSON."""
