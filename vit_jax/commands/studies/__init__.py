"""Commands on several runs: choosing, comparing, sweeping, searching."""
