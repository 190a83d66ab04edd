"""The calls of clients about flows: handles, reports, and retries by hand."""
