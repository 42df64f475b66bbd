"""The benchmark program: `python -m bench` measures this machine and prints one table of ratios.

Absolute figures say more about a machine than about a program, so ours is measured in turn with a
peer, in short rounds within one run, and what counts is the median of the rounds' ratios.
"""
