"""Between the user's terminal and the commands: words to options, help, signals."""
