"""The experiments of the paper, one command each; nothing in the library imports them."""
