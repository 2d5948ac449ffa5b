"""Expert-parallel groups of GPUs: bytes through their ports, and how long measured kernels take to move them."""
