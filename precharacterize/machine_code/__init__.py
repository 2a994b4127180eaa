"""Machine code that ptxas makes of a kernel, read back with control fields and the PTX line of each instruction."""
