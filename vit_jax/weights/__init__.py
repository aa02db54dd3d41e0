"""Other people's checkpoints: read without running anything in them, and written back."""
