"""Networks that are initialized or normalized in five ways."""
