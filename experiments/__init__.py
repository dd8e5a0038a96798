"""What proves the product and is not part of it; run from a clone."""
