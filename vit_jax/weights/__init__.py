"""Other people's weights: files read safely, tables of names and shapes, and ways back."""
