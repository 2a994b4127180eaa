"""What is kept on disk: the cache folder, whole files or none, digests, machine code."""
