"""Rules of attention."""
