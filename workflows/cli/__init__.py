"""The command `eventbus flows`, which the command line of `eventbus` finds by its entry point."""
