"""What a user calls: arguments are checked here once, for every backend and device."""
