"""Exit codes of commands."""

OK = 0
DIFFERS = 1  # a check found what it was asked to look for
FAILED_RUNS = 1  # some runs failed; the others are kept
USER_ERROR = 2  # the input is at fault
UNREAD = 3  # measured tables that nothing reads
INTERRUPTED = 130  # 128 + SIGINT, as shells count
