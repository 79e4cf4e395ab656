"""Measurements against alternatives in one run: attention, generation, memory, training, prefill."""
