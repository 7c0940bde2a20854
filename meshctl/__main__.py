"""`python -m meshctl`: the same as the command."""

from meshctl.cli.app import main

main()
