"""What a PTX instruction means: its form, its types, and what it computes, for every executor."""
