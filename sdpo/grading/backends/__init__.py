"""Other places where programs may run. Each answers the calls of `code.CodeRunner`."""
