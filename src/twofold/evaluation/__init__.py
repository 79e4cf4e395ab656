"""Held-out loss, perplexity and bits per byte."""
