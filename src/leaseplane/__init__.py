"""leaseplane: agents act when the plane says yes, and the log says why."""

__version__ = "0.1.0"
