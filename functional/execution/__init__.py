"""What all executors share: the interface, and what an execution says beside its trace."""
