"""Model and images to vectors to metrics: what training, evaluation, reports and search share."""
