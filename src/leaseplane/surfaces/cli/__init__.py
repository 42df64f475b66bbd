"""The command line: each module is one command, as arguments and a function that answers an exit status."""
