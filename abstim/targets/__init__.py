"""Everything that can be timed: what a name stands for, how it is executed, what is kept of that."""
