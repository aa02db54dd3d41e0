"""Distillation: a teacher, and the objective that learns from it."""
