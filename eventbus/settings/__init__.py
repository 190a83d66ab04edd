"""The settings of a provider, and the keyword options of its calls."""
