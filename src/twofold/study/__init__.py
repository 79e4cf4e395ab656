"""A study: plan, runs, records, statistics."""
