"""The row cache: what a decoder keeps per token, stored once."""
