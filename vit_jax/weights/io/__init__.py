"""Safe readers and writers of weight files: npz, safetensors and torch, whole or in shards."""
