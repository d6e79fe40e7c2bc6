"""The exit codes of the command line. docs/reference/exit_codes.md has a table of them."""

DONE = 0
# The user's input cannot be used.
INPUT = 2
# The loss or a weight is NaN or infinite.
DIVERGED = 3
# The command is done, but some lines or requests failed.
SOME_FAILED = 4
# No server answered in time.
UNREACHABLE = 5
INTERRUPTED = 130  # Ctrl-C
# SIGTERM ended the command after the state was saved.
TERMINATED = 143
