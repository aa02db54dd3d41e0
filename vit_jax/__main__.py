"""python -m vit_jax COMMAND"""

import sys

from vit_jax.cli import main

if __name__ == "__main__":
    sys.exit(main())
