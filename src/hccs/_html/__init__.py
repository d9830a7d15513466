"""HTML and SVG from Python values: everything is escaped, nothing is fetched, Python alone is needed."""
