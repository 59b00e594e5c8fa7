"""Translation quality: buckets, lengths, difficulty, comparison of systems."""
