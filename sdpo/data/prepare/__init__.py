"""Converters from the sources' own formats to the row schema of `sdpo.data.rows`: one module a source."""
