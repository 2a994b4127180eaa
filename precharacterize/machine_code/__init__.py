"""What ptxas makes of a kernel: its machine code, read back with control fields and the PTX line of every instruction."""
