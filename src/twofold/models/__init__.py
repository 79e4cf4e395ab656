"""Architectures, presets and the causal decoder, as Hugging Face models."""
