"""Ranks to metrics: one streaming pass, every metric a short function of what it found."""
