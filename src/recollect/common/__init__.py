"""The basement: what every room may use and what uses no room itself."""
