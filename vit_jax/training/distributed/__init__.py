"""Several devices and processes: the mesh, sharding, and processes that train together."""
