"""A kernel with all that it calls as one list of instructions, cut into basic blocks."""
