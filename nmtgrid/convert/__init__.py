"""Conversion of models from and for other toolkits, without executing code in their files."""
