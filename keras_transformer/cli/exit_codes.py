"""The exit codes of the command line. docs/serving.md has a table of them."""

DONE = 0
INPUT = 2  # the user's input cannot be used
DIVERGED = 3  # the loss or a weight is NaN or infinite
SOME_FAILED = 4  # the command is done, but some lines or requests failed
UNREACHABLE = 5  # no server answered in time
INTERRUPTED = 130  # Ctrl-C
TERMINATED = 143  # SIGTERM, after the state was saved
