"""Projections to rows, rotary, and the score paths: the attention layer."""
