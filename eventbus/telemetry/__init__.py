"""Log events, spans, records of errors, and the context that travels with a job."""
