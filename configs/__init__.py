"""GPU descriptions, one TOML file a GPU; `base =` makes one a delta of another. Loaded by `abstim.gpu.config`."""
