"""Models of transformers made to cache one row per token, or less of it, with their outputs unchanged."""
