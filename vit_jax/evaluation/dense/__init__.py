"""Evaluators of answers for pixels and objects, and of several tasks at once."""
