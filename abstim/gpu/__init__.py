"""GPUs as data: counts and policies, latencies, occupancy; read from TOML or from a simulator's configuration."""
