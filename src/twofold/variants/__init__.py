"""What is shared: notation, `Variant` and `RowLayout`. Pure arithmetic, no torch."""
