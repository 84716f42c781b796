"""A sigmoid belief network as a generative model, trained by several estimators of one bound."""
