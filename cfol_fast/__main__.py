"""`python -m cfol_fast` and the command `cfol-fast`."""

import os
import signal
import sys


def run() -> int:
    """The command line, for an interpreter that ends afterwards.

    Ctrl-C while it is loaded is one sentence as well.
    """
    try:
        from cfol_fast.commands.main import main

        status = main()
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            # While the interpreter ends, Python would answer Ctrl-C with a traceback. All is done, and the
            # status is known.
            signal.signal(signal.SIGINT, lambda *_: os._exit(status))
    except KeyboardInterrupt:
        print("cfol-fast: interrupted", file=sys.stderr)
        status = 130
    return status


if __name__ == "__main__":
    sys.exit(run())
