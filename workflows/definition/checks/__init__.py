"""What the parts of a definition must satisfy: functions, declared errors, and how deep workflows nest."""
