"""The dataset directory, batches, and the code that builds them."""
