"""Bulk operations and the audit, as the server keeps them."""
