"""Sources of clips: folders of frames, and digits that move."""
