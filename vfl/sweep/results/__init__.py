"""What comes of a sweep: its numbers as tables, pictures and pages."""
