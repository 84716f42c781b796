"""A logistic unit as a logic gate with uncertain inputs."""
