"""Tables of images: CSV and JSONL files with a line for each image."""
