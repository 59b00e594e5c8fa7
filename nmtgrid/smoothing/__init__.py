"""Loss smoothing: targets that are near the true one count too, tokens and sentences (app. E)."""
