"""Analyses of translations and models: each returns text, tables, figures and JSON."""
