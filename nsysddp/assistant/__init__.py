"""For programs and assistants: a guide on asking the right question, and a read-only server over the registry."""
