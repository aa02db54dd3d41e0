"""python -m vit_jax COMMAND"""

import sys

from vit_jax.startup import leave_on_signals

if __name__ == "__main__":
    leave_on_signals()  # before the import below, which takes seconds

    from vit_jax.cli import main

    sys.exit(main())
