"""Rules for units that depend on each other, one for each kind of operation."""
