"""Trains a model: python train.py --config=configs/digits.py [--config.KEY=VALUE ...]

The same as `python -m vit_jax train` for people who installed the package.
"""

import sys

from vit_jax.process_setup import restart_with_huge_pages
from vit_jax.startup import leave_on_signals

if __name__ == "__main__":
    restart_with_huge_pages()
    leave_on_signals()  # before the import below, which takes seconds

    from vit_jax.cli import main

    sys.exit(main(["train", *sys.argv[1:]]))
