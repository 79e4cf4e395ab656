"""Healing: a converted model learns from the model that it was made of what the conversion lost."""
