"""Tasks that fill in masked patches."""
