"""What the drawn pictures share, SVG and page: shapes, colours, and the pipeline as a graph."""
