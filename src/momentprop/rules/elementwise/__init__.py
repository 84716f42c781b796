"""Rules of elementwise operations."""
