"""Evaluators judge responses by running them; they know nothing of engines or manifests."""
