"""Bulk operations and the audit, as people see them."""
