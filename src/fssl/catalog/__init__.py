"""Facts about every method: its source, what it keeps and sends, what a step costs."""
