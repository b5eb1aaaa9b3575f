"""What files look like: validated, frozen documents. Never imports JAX."""
