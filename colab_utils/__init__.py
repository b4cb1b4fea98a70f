"""Helper library of the workbench; notebooks only call it."""
