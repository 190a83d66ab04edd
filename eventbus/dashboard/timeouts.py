"""How long the server may take for what a page or an answer of the dashboard asks it for, in seconds.

A page must not wait longer: it says instead that the server does not answer. Callers read these values when
they need them (`timeouts.READ`), so that a test can give a busy machine more time.
"""

READ = 2.0
"""One read, or one change."""

SHARED_READ = 5.0
"""A read that all viewers share: failed jobs by their errors, the versions of workflows."""

SEARCH = 6.0
"""Looking for one thing in many places."""

MANY = 8.0
"""Looking at all queues, of which there may be thousands; previewing and starting an operation."""

REQUEST = 10.0
"""A whole request, with all its reads."""
