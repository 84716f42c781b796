"""Running times of training steps and of predictions."""
