"""The wire: one REST API, its client, and how the broker is found."""
