"""`python -m momentprop` is the command `momentprop`."""

import sys

from momentprop.cli import main

if __name__ == "__main__":
    sys.exit(main())
