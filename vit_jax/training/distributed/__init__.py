"""Distributed training: the mesh, sharding, and several processes."""
