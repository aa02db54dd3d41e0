"""How answers for pixels and objects are judged, and several tasks at once."""
