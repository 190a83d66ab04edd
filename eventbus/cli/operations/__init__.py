"""The commands for bulk operations and for the audit."""
