"""Pictures in text: `picture` draws a whole plan, `zoom` one part of it, and `diff` the difference of two."""
