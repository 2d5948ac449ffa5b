"""Exit codes of commands."""

OK = 0
USER_ERROR = 2  # the input is at fault
INTERRUPTED = 130  # 128 + SIGINT, as shells count
