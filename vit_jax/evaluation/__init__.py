"""Evaluation: how trained models are judged."""
