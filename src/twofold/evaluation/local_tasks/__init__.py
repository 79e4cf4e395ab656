"""Small tasks for lm-evaluation-harness that need no network: task files, their documents, and what wrote them."""
