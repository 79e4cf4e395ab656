"""Studies of tasks: variants trained on tasks with an answer, swept, over seeds, and scored on a test set read once."""
