"""What a user asks of a pair, answered from the rooms below, and stored."""
