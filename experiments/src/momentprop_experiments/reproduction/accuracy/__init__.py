"""The accuracy of AP1 and AP2 at every layer of trained networks, and the paper's first figure."""
