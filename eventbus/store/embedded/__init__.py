"""The Valkey server that the `embedded` extra installs."""
