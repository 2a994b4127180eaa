"""The engine as machine code: one scalar loop an SM, event by event."""
