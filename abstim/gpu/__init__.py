"""What a GPU is: counts and policies, latencies, occupancy; read from TOML or from a simulator's configuration."""
