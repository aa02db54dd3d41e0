"""Scenes made on the spot of real pictures, with exact boxes, masks, instances and depth."""
