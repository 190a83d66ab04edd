"""The simulation: the real engine in virtual time, under faults that a seed decides."""
