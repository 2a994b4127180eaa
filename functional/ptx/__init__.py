"""PTX text to a module: grammar, parser, and what a module holds."""
