"""The interface of all executors, and findings that an execution has beside its trace."""
