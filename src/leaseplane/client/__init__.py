"""The client: what a program asks a plane through, whether it is embedded or at a URL."""
