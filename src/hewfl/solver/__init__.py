"""The weight problems on the simplex, solved exactly and certified."""
