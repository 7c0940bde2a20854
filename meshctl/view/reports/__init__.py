"""How a `Report` looks: a file for each format."""
