"""What tenants may not learn of each other, and what each is charged."""
