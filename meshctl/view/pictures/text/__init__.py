"""The parts of the picture in text: `picture` is the whole, `zoomed` a part of it, `diff` what changes."""
