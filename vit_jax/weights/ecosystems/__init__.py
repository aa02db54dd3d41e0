"""What files of one origin look like: configuration, preprocessing and quirks."""
