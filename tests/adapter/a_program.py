"""A module that is a program: whoever imports it is told to leave."""

raise SystemExit(3)
