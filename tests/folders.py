"""Where the files that tests use lie, so that no test counts the folders above it."""

from pathlib import Path

TESTS = Path(__file__).parent
ROOT = TESTS.parent
CONFIGS = ROOT / "configs"
INPUTS = TESTS / "inputs"  # images and folders, odd ones among them
GOLDENS = TESTS / "goldens"  # what other libraries computed, and the scripts that asked them
