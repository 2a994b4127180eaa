"""What ptxas makes of a kernel: machine code, read back with control fields and the PTX line of each instruction."""
