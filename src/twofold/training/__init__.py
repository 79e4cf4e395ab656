"""One training run."""
