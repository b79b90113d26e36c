"""`python -m cfol_fast`: the same as the command `cfol-fast`."""

import sys

from cfol_fast.commands.main import main

if __name__ == "__main__":
    sys.exit(main())
