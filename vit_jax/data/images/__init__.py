"""Image files to arrays: decoding, colours, resizing, preprocessing."""
