"""One job: its report, why it does not run, what failed, how it is found, and what changes it."""
