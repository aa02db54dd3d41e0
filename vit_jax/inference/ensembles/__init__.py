"""Ensembles: several classifiers, or several views of an image, whose answers are averaged."""
