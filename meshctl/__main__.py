"""`python -m meshctl`: the same as the command."""

from meshctl.cli.main import main

main()
