"""REST: the contract's section 3 over HTTP."""
