"""The page to play with: its programs, how it is built, and how Chromium plays with it."""
