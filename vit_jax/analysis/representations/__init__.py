"""Features of every layer: probes of them, and how similar layers are."""
