"""Online translation: reading the source and writing the target in turns."""
