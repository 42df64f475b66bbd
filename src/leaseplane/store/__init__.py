"""Where the plane keeps what it has decided, and the machine room below that."""
