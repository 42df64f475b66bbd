# Two targets are all a fresh machine needs: `make demo` and `make test`.
