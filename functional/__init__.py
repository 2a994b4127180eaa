"""What a kernel does: PTX in, dynamic trace out. Knows no clock."""
