"""Every private hook into torch, guarded."""
