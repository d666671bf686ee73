"""The command line: one file per command. Everything heavy is imported when a command runs."""
