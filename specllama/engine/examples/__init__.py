"""What a head can learn from a user's texts, kept in a folder while they are answered."""
