"""The only code that knows Redis."""
