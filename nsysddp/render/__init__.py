"""Show results: text, tables, documents, pictures, pages. Nothing here computes a metric."""
