"""One reader per tool: pure, streaming, constant memory. Readers never guess a unit and never fill a gap."""
