"""A target on GPUs: every launch through tables, occupancy, caches and engine, and what comes out."""
