"""What a model's projections do: how alike they are, their rank, their circuits, and where its heads look."""
