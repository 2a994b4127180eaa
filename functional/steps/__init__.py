"""Steps: what one instruction does to all warps that are at it, on arrays. Those that are not compiled."""
