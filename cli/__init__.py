"""Command line: words, screens and exit codes; thin over the API."""
