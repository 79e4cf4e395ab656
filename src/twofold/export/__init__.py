"""Models trained here as models of other engines: exact, checked, or refused with the reason."""
