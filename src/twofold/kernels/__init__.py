"""Kernels over cached rows: native ones for CPUs, and plain torch operations that do the same."""
