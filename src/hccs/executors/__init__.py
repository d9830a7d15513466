"""What runs programs, or writes them for other runtimes. Each has one table from operators to its code."""
