"""What a person or a scheduler starts: the commands, and the only code that knows Ray."""
