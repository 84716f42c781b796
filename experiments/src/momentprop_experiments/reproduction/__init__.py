"""The tables and figures of the paper, and ours beside them, by topic; `registry` lists them all."""
