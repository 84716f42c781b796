"""Five ways to initialize or normalize a network."""
