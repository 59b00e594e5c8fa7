"""The dataset directory, batches, and what builds them."""
