"""Corpora, the byte tokenizer and packing."""
