"""The reports of flows, by the way in which they are written."""
