"""`python -m abstim`: the command, where its script is not on the path."""

from abstim.cli import main

main()
