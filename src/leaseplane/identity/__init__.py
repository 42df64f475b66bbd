"""Who asks: API keys, signed requests, the operator's registry, and the gate that they all pass."""
