"""Rules of operations that mix units nonlinearly."""
