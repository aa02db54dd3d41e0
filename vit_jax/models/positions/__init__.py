"""Position embeddings: learned and fixed tables, relative bias, rotary, and resizing."""
