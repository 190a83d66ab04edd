"""The values and rules that all other modules use: events, messages, names, durations. No I/O."""
