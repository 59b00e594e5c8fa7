"""Quality and latency of translations."""
