"""The model zoo: one interface, and a package or module for each architecture."""
