"""``python -m archsim``: the command line."""

import sys

from archsim.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
