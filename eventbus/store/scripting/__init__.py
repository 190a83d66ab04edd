"""The scripts in the server: their texts, and what they are sent and answer."""
