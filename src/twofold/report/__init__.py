"""Records to tables, figures and HTML. Never imports torch."""
