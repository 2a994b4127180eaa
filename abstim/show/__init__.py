"""What a person sees: tables, pages, timelines."""
