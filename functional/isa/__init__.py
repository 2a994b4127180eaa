"""The meaning of PTX instructions, for every executor: form, types, and what they compute."""
